"""The environment of one attempt: its files, a Python environment of its own, its variables."""

import gzip
import hashlib
import json
import os
import posixpath
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_agent.jobs.queue import Job, Spec
from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_core.contract import Environment as Variables
from tpu_core.contract import Port

_HASH = "--hash="
_WRITE = "import os, sys; p = sys.argv[1]; open(p, 'w').write(sys.argv[2]); os.chmod(p, 0o755)"
_TRAINER = '#!/bin/sh\nexec python -m tpu_training "$@"\n'
_PATHS = "import json, sys; print(json.dumps([p for p in sys.path if p.endswith('-packages')]))"


class SetupError(Exception):
    """What a job needs can't be provided."""


class Environment:
    """Makes what an attempt runs in.

    Args:
        folder: the attempt's.
        spec: what to run.
        content: what the runner knows of it: `variables`, `job`, and whether it `sees_packages` of
            the machine's Python whatever its framework.
        call: runs a command with further variables, and returns its exit code.
        own: gives the job folders. From then on its commands alone change them: it may have put
            links there.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        content: Mapping[str, Any],
        call: Callable[[Sequence[str], Mapping[str, str]], int],
        own: Callable[[Iterable[Path]], None],
    ) -> None:
        self._own = own
        self._folder, self._spec, self._content, self._call = folder, spec, content, call
        self._work, self._venv = folder / "work", folder / "venv"
        self.artifacts = folder / "artifacts"

    def make(self, store: Bucket) -> None:
        """Make it. Raises SetupError, Harmful or GoogleError."""
        folders = (self._work, self.artifacts, self._venv, self._folder / "home")
        for path in folders:
            path.mkdir(exist_ok=True)
        wheel = self._fetch(store)
        needed = [*([str(wheel)] if wheel else []), *self._requirements()]
        # By /dev/stderr a job opens its log again.
        self._own((*folders, self._folder / "log"))
        self._make_venv(with_pip=bool(needed))
        sees = self._spec.framework == "tensorflow" or self._content.get("sees_packages")
        if sees:
            self._see(self._machines())
        if needed:
            self._install(needed)
        if not sees:
            # After pip, which would miss what the trainer in the same folder needs.
            self._see([])

    def variables(self) -> dict[str, str]:
        """Return the variables of the job's processes."""
        path = f"{self._venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        own = {"PATH": path, "VIRTUAL_ENV": str(self._venv), "ARTIFACTS_DIR": str(self.artifacts)}
        return {**own, **self._content["variables"]}

    def _fetch(self, store: Bucket) -> Path | None:
        """Bring the job's archive here; return the wheel if it is one."""
        if not self._spec.archive:
            return None
        found = store.read(paths.archive(self._spec.archive))
        if found is None:
            raise SetupError(f"its archive {self._spec.archive} is no longer in the bucket")
        is_wheel = self._spec.kind == "wheel"
        # pip reads name and version in a wheel's own name.
        path = self._folder / (Path(self._spec.source).name if is_wheel else "archive.tar.gz")
        path.write_bytes(found[0])
        check_digest(path, self._spec.archive)
        if is_wheel:
            return path
        unpack(path, self._work)
        path.unlink()
        return None

    def _requirements(self) -> list[str]:
        if not self._spec.requirements:
            return []
        path = self._folder / "requirements.txt"
        path.write_text(self._spec.requirements, "utf-8")
        hashes = ["--require-hashes"] if _HASH in self._spec.requirements else []
        return [*hashes, "--requirement", str(path)]

    def _make_venv(self, *, with_pip: bool) -> None:
        # -I: neither variables nor the folder that this runs in may add modules to it.
        command = [self._python(), "-I", "-m", "venv", "--clear", str(self._venv)]
        if self._call(command if with_pip else [*command, "--without-pip"], {}) != 0:
            raise SetupError("the Python environment could not be created")

    def _install(self, needed: Sequence[str]) -> None:
        pip = [str(self._venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        # A wheel of the person's own has no hash in their lock file.
        wheels = [one for one in needed if one.endswith(".whl")]
        rest = [one for one in needed if one not in wheels]
        # pip fails without anything to install.
        for arguments in filter(None, (rest, wheels)):
            if self._call([*pip, "install", "--quiet", *arguments], {}) != 0:
                raise SetupError("its requirements can't be installed: see its log")

    def _machines(self) -> list[str]:
        """Return where the machine's packages are, with a command for the trainer."""
        asked = subprocess.run(
            [self._python(), "-c", _PATHS], capture_output=True, text=True, check=False
        )
        if asked.returncode != 0:
            raise SetupError("the VM's TensorFlow can't be found")
        self._write(self._venv / "bin" / "tpu-training", _TRAINER)
        return list(json.loads(asked.stdout))

    def _see(self, folders: Sequence[str]) -> None:
        """Let the environment find the packages in these folders, `tpu_core` and the trainer."""
        found = [*folders, *filter(None, [os.environ.get(Variables.PACKAGES)])]
        lines = [f"import site; site.addsitedir({path!r})\n" for path in found]
        for packages in self._venv.glob("lib/python*/site-packages") if lines else ():
            self._write(packages / "tpu-stack.pth", "".join(lines))

    def _write(self, path: Path, text: str) -> None:
        """Write a program or a file as the job, whose folder it is in."""
        if self._call([self._python(), "-I", "-c", _WRITE, str(path), text], {}) != 0:
            raise SetupError(f"{path.name} could not be written")

    @staticmethod
    def _python() -> str:
        return os.environ.get(Variables.PYTHON) or "python3"


@dataclass(frozen=True)
class Tpu:
    """A TPU that is ready.

    Attributes:
        name: its name.
        zone: its zone.
        project: its project.
        hosts: the addresses of its workers, in their order.
        port: where they serve gRPC.
        created: when it was made: another of the same name is another TPU.
        is_here: whether this machine is one of its workers.
        worker: the number of this machine among them.
    """

    name: str
    zone: str
    project: str
    hosts: tuple[str, ...]
    created: str
    port: int = Port.GRPC
    is_here: bool = False
    worker: int = 0


def content_of(job: Job, bucket: str, tpu: Tpu) -> dict[str, Any]:
    """Return what a supervisor has to know of a job's last attempt."""
    number = job.tries[-1].number
    return {
        "job": job.name,
        "number": number,
        "bucket": bucket,
        "spec": vars(job.spec),
        "created": tpu.created,
        "variables": variables(job.name, number, bucket, job.spec, tpu),
    }


def variables(job: str, number: int, bucket: str, spec: Spec, tpu: Tpu) -> dict[str, str]:
    """Return what every job gets, what its framework wants, and what it was submitted with."""
    folder = f"gs://{bucket}/{paths.folder(job)}".rstrip("/")
    return {
        "JOB_NAME": job,
        "JOB_TRY": str(number),
        "JOB_DIR": folder,
        "MODEL_DIR": f"{folder}/model",
        "DATA_DIR": f"gs://{bucket}/data",
        "TPU_NAME": tpu.name,
        "TPU_ZONE": tpu.zone,
        "TPU_PROJECT": tpu.project,
        "TPU_GRPC_URL": f"grpc://{tpu.hosts[0]}:{tpu.port}" if tpu.hosts else "",
        "TPU_WORKER_ID": str(tpu.worker),
        "TPU_WORKER_HOSTNAMES": ",".join(tpu.hosts),
        "PYTHONUNBUFFERED": "1",
        **_of_framework(spec.framework, tpu),
        **spec.env,
    }


def _of_framework(framework: str, tpu: Tpu) -> Mapping[str, str]:
    """Return how a framework is told of the TPU.

    PJRT drives chips of its own machine only; elsewhere it gets the CPU. PyTorch/XLA before 2.1
    reaches a TPU by gRPC (XRT) if `XRT_TPU_CONFIG` names it, but not where `PJRT_DEVICE` is set,
    which counts first; later ones take the CPU by themselves if neither chips nor it are there.
    """
    device = "TPU" if tpu.is_here else "CPU"
    if framework == "tensorflow" and tpu.is_here:
        # What TensorFlow calls the TPU of its own machine.
        return {"PJRT_DEVICE": device, "TPU_NAME": "local"}
    if framework == "pytorch" and not tpu.is_here:
        workers = enumerate(f"{host}:{tpu.port}" for host in tpu.hosts)
        return {"XRT_TPU_CONFIG": "|".join(f"tpu_worker;{index};{at}" for index, at in workers)}
    if framework == "jax":
        platforms = "tpu,cpu" if tpu.is_here else "cpu"
        own = of_jax(tpu.hosts, tpu.worker) if tpu.is_here else {}
        return {"PJRT_DEVICE": device, "JAX_PLATFORMS": platforms, **own}
    return {"PJRT_DEVICE": device}


# Where JAX itself has the coordinator listen (_src/clusters/cloud_tpu_cluster.py).
_COORDINATOR_PORT = 8476


def of_jax(hosts: Sequence[str], worker: int) -> Mapping[str, str]:
    """Return how the processes of a slice find each other; nothing on a single host.

    `jax.distributed.initialize` reads the first variable. It finds out the others on a TPU VM. On
    machines of Compute Engine it can't: there users saw bare names, and JAX reads a third part.
    Keras reads its own three (`keras.distribution.initialize`).
    """
    if len(hosts) < 2:
        return {}
    address, count = f"{hosts[0]}:{_COORDINATOR_PORT}", str(len(hosts))
    return {
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": count,
        "JAX_PROCESS_ID": str(worker),
        "KERAS_DISTRIBUTION_JOB_ADDRESSES": address,
        "KERAS_DISTRIBUTION_NUM_PROCESSES": count,
        "KERAS_DISTRIBUTION_PROCESS_ID": str(worker),
    }


# `job submit` packs 200 MiB at most.
_MOST_BYTES = 1 << 30
# Files are read in small parts; what is read at once is a header.
_MOST_AT_ONCE = 1 << 20


class Harmful(Exception):
    """An archive is not what was uploaded, or would write outside of its folder."""


class _Unzipped(gzip.GzipFile):
    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _MOST_AT_ONCE:
            raise tarfile.ReadError(f"a header of {size} bytes")
        return super().read(size)


def check_digest(path: Path, sha256: str) -> None:
    """Raise Harmful unless a file has this SHA-256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    if digest.hexdigest() != sha256:
        raise Harmful(f"the archive is not the uploaded one: its SHA-256 is not {sha256}")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a .tar.gz into a folder. Raises Harmful before anything is written, or OSError."""
    try:
        with _Unzipped(archive) as file, tarfile.open(fileobj=file, mode="r:") as tar:
            # Python 3.10 and 3.11.2, which is Debian 12's, don't have it.
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            members = _checked(tar)
            # No file is ever written through a link.
            tar.extractall(folder, sorted(members, key=tarfile.TarInfo.issym))
    except (tarfile.TarError, EOFError, zlib.error, RecursionError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise Harmful(f"the archive can't be extracted: {error}") from None


def _checked(tar: tarfile.TarFile) -> list[tarfile.TarInfo]:
    members: dict[str, tarfile.TarInfo] = {}
    left = _MOST_BYTES
    for member in tar:
        _check(member)
        left -= member.size + tarfile.BLOCKSIZE
        if left < 0:
            raise Harmful(f"the archive has more than {_MOST_BYTES >> 30} GiB when extracted")
        if members.setdefault(posixpath.normpath(member.name), member) is not member:
            raise Harmful(f"{member.name} is in the archive twice")
        # As it was packed, but without set-user-ID.
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        member.uid = member.gid = 0
        member.uname = member.gname = ""
    links = {name for name, one in members.items() if one.issym()}
    for name, member in members.items():
        # Links to folders may lead out together.
        if _passes(name, links) or (member.issym() and _passes(_target(member), links)):
            raise Harmful(f"{member.name} in the archive is behind a link")
    return list(members.values())


def _check(member: tarfile.TarInfo) -> None:
    if not (member.isfile() or member.isdir() or member.issym()):
        raise Harmful(f"{member.name} in the archive is neither file, folder nor symbolic link")
    if _leads_out(member.name):
        raise Harmful(f"{member.name} in the archive is outside of it")
    if member.issym() and (member.linkname.startswith("/") or _leads_out(_target(member))):
        raise Harmful(f"{member.name} in the archive is a link to {member.linkname}, outside of it")


def _target(member: tarfile.TarInfo) -> str:
    return posixpath.join(posixpath.dirname(member.name), member.linkname)


def _passes(path: str, links: set[str]) -> bool:
    """Return whether the way to a path, with each `..` as it stands, passes a link."""
    parts = path.split("/")
    return any(
        posixpath.normpath("/".join(parts[:count])) in links for count in range(1, len(parts))
    )


def _leads_out(path: str) -> bool:
    normal = posixpath.normpath(path)
    return path.startswith("/") or normal == ".." or normal.startswith("../")
