"""The environment of one attempt: its files, its Python environment, its variables.

Each attempt has a Python environment of its own. Where hashes decide what is in it, it is a thin
one over one that the machine keeps (kept.py): a job's `pip install` changes its own.
"""

import gzip
import hashlib
import json
import os
import posixpath
import re
import subprocess
import tarfile
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tpu_agent.jobs.kept import Kept, being_built
from tpu_agent.jobs.queue import Job, Spec
from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_core.contract import Environment as Variables, Port

_HASH = "--hash="
# The options that a pinned file may have: nothing reads a file that another job lacks.
_OPTIONS = re.compile(r"(?m)(?<!\S)-.*?(?=\s-|$)")
_COMMENTS = re.compile(r"(?m)(^|\s)#.*")
_PINNED = re.compile(
    r"--hash=|-(i|f|-(extra-)?index-url|-find-links)[ =]+https://"
    r"|--(only-binary|no-binary|prefer-binary|require-hashes|pre)\b"
)
_WRITE = "import os, sys; p = sys.argv[1]; open(p, 'w').write(sys.argv[2]); os.chmod(p, 0o755)"
_TRAINER = '#!/bin/sh\nexec python -m tpu_training "$@"\n'
_PYTHON = """
import json, sys, sysconfig
paths = [path for path in sys.path if path.endswith("-packages")]
about = [sys.version, sys.executable, sys.implementation.cache_tag, sysconfig.get_platform()]
print(json.dumps([paths, about]))
"""
_PIP = ("-I", "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
_BUILT = "environment built in {:.0f} s, and kept"
_ALONE = (
    "environment built in {:.0f} s, for this attempt alone: only requirements with hashes are kept"
)
# A job's own environment over a kept one: it has the programs, and finds the packages there.
_OVER = "\n".join(
    (
        "import os, pathlib, shutil, sys",
        "kept, built, own = map(pathlib.Path, sys.argv[1:])",
        "packages = next(kept.glob('lib/python*/site-packages'))",
        "skip = lambda at, names: names if at == str(packages) else ()",
        "shutil.copytree(kept, own, symlinks=True, ignore=skip, dirs_exist_ok=True)",
        "for path in (own / 'bin').iterdir():",
        "    if path.is_file() and not path.is_symlink():",
        "        path.write_bytes(path.read_bytes().replace(*map(os.fsencode, (built, own))))",
        "line = f'import site; site.addsitedir({str(packages)!r})'",
        "(own / packages.relative_to(kept) / 'tpu-stack-kept.pth').write_text(line)",
    )
)


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
        take: takes a folder back, which the job may read from then on.
    """

    def __init__(
        self,
        folder: Path,
        spec: Spec,
        content: Mapping[str, Any],
        call: Callable[[Sequence[str], Mapping[str, str]], int],
        own: Callable[[Iterable[Path]], None],
        take: Callable[[Path], None],
    ) -> None:
        self._own, self._take = own, take
        self._folder, self._spec, self._content, self._call = folder, spec, content, call
        self._work, self._venv = folder / "work", folder / "venv"
        self._kept: Kept | None = None
        self._sees = spec.framework == "tensorflow" or bool(content.get("sees_packages"))
        self.artifacts = folder / "artifacts"

    def make(self, store: Bucket) -> str:
        """Make it; return how, if it has packages, which an image brings.

        Raises SetupError, Harmful or GoogleError.
        """
        folders = (self._work, self.artifacts, self._venv, self._folder / "home")
        for path in folders:
            path.mkdir(exist_ok=True)
        wheel = self._fetch(store)
        needed, begun = self._requirements(), time.monotonic()
        # By /dev/stderr a job opens its log again.
        self._own((*folders, self._folder / "log"))
        if self._spec.image:
            return ""
        how = self._keep(needed) if is_pinned(self._spec.requirements) else ""
        if not how:
            self._build(self._venv, needed, with_pip=bool(needed or wheel))
            how = _ALONE
        if wheel:
            # A wheel of the person's own has no hash in their lock file.
            self._install(self._venv, [str(wheel)])
        if not self._sees:
            # After pip, which would miss what the trainer in the same folder needs.
            self._see(self._venv, [])
        return how.format(time.monotonic() - begun) if needed or wheel else ""

    def variables(self) -> dict[str, str]:
        """Return the variables of the job's processes."""
        own = {"ARTIFACTS_DIR": str(self.artifacts)}
        if not self._spec.image:
            path = f"{self._venv / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
            own |= {"PATH": path, "VIRTUAL_ENV": str(self._venv)}
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

    def _keep(self, needed: Sequence[str]) -> str:
        """Make it over a kept environment; return how, or nothing if there can be none."""
        key = self._key()
        # As long as this object, nothing removes it.
        self._kept = Kept(kept_folder(self._folder.parent))
        kept, how = self._kept.find(key), f"kept environment {key}"
        if kept is None:
            kept, how = self._kept.build(key, partial(self._fill, needed)), _BUILT
        if kept is None:
            return ""
        over = (self._python(), "-I", "-c", _OVER, kept, being_built(kept), self._venv)
        if self._call(list(map(str, over)), {}) != 0:
            raise SetupError(f"the kept environment {kept} can't be used: see its log")
        return how

    def _key(self) -> str:
        """Return the digest of all that decides what a kept environment has."""
        folders, about = self._about()
        seen = [*folders, *_packages()] if self._sees else []
        # Names and releases: pip installs nothing that is there already.
        there = [sorted(path.name for path in Path(one).glob("*-info")) for one in seen]
        all_of_it = [self._spec.requirements, _PIP, about, seen, there]
        return hashlib.sha256(json.dumps(all_of_it).encode()).hexdigest()[:32]

    def _fill(self, needed: Sequence[str], folder: Path) -> None:
        self._own([folder])
        self._build(folder, needed, with_pip=True)
        self._take(folder)

    def _build(self, venv: Path, needed: Sequence[str], *, with_pip: bool) -> None:
        # -I: neither variables nor the folder that this runs in may add modules to it.
        command = [self._python(), "-I", "-m", "venv", "--clear", str(venv)]
        if self._call(command if with_pip else [*command, "--without-pip"], {}) != 0:
            raise SetupError("the Python environment could not be created")
        if self._sees:
            # With a command for the trainer.
            self._write(venv / "bin" / "tpu-training", _TRAINER)
            self._see(venv, self._about()[0])
        # pip fails without anything to install.
        if needed:
            self._install(venv, needed)

    def _install(self, venv: Path, needed: Sequence[str]) -> None:
        if self._call([str(venv / "bin" / "python"), *_PIP, *needed], {}) != 0:
            raise SetupError("its requirements can't be installed: see its log")

    def _about(self) -> tuple[list[str], list[str]]:
        """Return where the machine's Python has its packages, and which Python it is."""
        asked = subprocess.run(
            [self._python(), "-c", _PYTHON], capture_output=True, text=True, check=False
        )
        if asked.returncode != 0:
            raise SetupError(f"the VM's Python {self._python()} can't be run: {asked.stderr}")
        found, about = json.loads(asked.stdout)
        return found, about

    def _see(self, venv: Path, folders: Sequence[str]) -> None:
        """Let an environment find the packages in these folders, `tpu_core` and the trainer."""
        lines = [f"import site; site.addsitedir({path!r})\n" for path in (*folders, *_packages())]
        for packages in venv.glob("lib/python*/site-packages") if lines else ():
            self._write(packages / "tpu-stack.pth", "".join(lines))

    def _write(self, path: Path, text: str) -> None:
        """Write a program or a file as the job, whose folder it is in."""
        if self._call([self._python(), "-I", "-c", _WRITE, str(path), text], {}) != 0:
            raise SetupError(f"{path.name} could not be written")

    @staticmethod
    def _python() -> str:
        return os.environ.get(Variables.PYTHON) or "python3"


def kept_folder(attempts: Path) -> Path:
    """Return where the environments for the attempts in a folder are kept."""
    return attempts / "environments"


def is_pinned(requirements: str) -> bool:
    """Return whether the hashes in a requirements file decide all that pip installs for it.

    pip itself refuses a file with hashes in which a package has none.
    """
    read = _COMMENTS.sub("", "\n".join(requirements.splitlines()))
    return _HASH in read and all(map(_PINNED.match, _OPTIONS.findall(read)))


def _packages() -> list[str]:
    """Return where `tpu_core` and the trainer are, if they are anywhere."""
    return list(filter(None, [os.environ.get(Variables.PACKAGES)]))


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
        "is_here": tpu.is_here,
        "project": tpu.project,
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
