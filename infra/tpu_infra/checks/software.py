"""Checks of runtimes and packages, and of what the stack uploads to train."""

import functools
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpu_agent.bundle import lock_of
from tpu_core import paths
from tpu_core.contract import NO_TENSORFLOW
from tpu_infra.catalog import entries
from tpu_infra.catalog.entries import TPU_PACKAGE, VM_PACKAGE, Packages, Release, Runtime, numbers
from tpu_infra.checks import bucket, compute
from tpu_infra.checks.context import Context, nearest, one_of
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import UNSET, Problem
from tpu_infra.settings.machines import Backend

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?((a|b|rc)\d+)?")


def check_runtime(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that a TPU VM's runtime exists, suits the TPU and does what the stack needs.

    Where the VM trains, it drives the TPU by gRPC: a `-pod` runtime serves it itself, any other
    needs TensorFlow's worker script, which does not know every generation. Where worker 0 trains,
    it reaches the other hosts in the same way.
    """
    if settings.is_node or settings.is_compute:
        return
    name = settings.tpu.runtime_version
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    suitable = [
        runtime.name
        for runtime in context.catalog.runtimes.values()
        if runtime.tensorflow and (accelerator is None or accelerator.family in runtime.families)
    ]
    if name is None:
        cure = f"Set one, for example {' or '.join(suitable[:2])}"
        yield Problem("tpu.runtimeVersion", UNSET, "is required for architecture vm", cure)
        return
    runtime = context.catalog.runtime(name)
    if runtime is None:
        why = "is not a runtime that Google documents"
        cure = nearest(name, context.catalog.runtimes)
        yield Problem("tpu.runtimeVersion", name, why, cure)
        return
    if accelerator and accelerator.family not in _families(runtime, context):
        why = (
            f"does not run on {accelerator.name} (it is for "
            f"{', '.join(_families(runtime, context))})"
        )
        yield Problem("tpu.runtimeVersion", name, why, nearest(name, suitable))
    if runtime.serves_grpc:
        return
    if settings.trains_on_tpu:
        # Jobs of JAX and PyTorch run on each host, and take such runtimes alone.
        if accelerator and accelerator.hosts > 1 and not settings.jobs.enabled:
            yield Problem(
                "tpu.runtimeVersion",
                name,
                "serves no gRPC, so a trainer on worker 0 can't use the other "
                f"{accelerator.hosts - 1} hosts of a {accelerator.name}",
                "Use a -pod runtime, or set jobs.enabled to run a program on each host",
            )
        return
    # The TPU VM's start-up script must serve gRPC for the VM. See startup/tpu_vm.sh.
    if accelerator and not accelerator.grpc_worker:
        why = f"serves no gRPC, and TensorFlow's worker script does not know {accelerator.family}"
        yield Problem("tpu.runtimeVersion", name, why, "Use a -pod runtime, or training.runOn: tpu")


def _families(runtime: Runtime, context: Context) -> tuple[str, ...]:
    """Return the generations that a runtime runs on; for one not listed, those it may run on."""
    if runtime.listed:
        return runtime.families
    alike = (r for r in context.catalog.runtimes.values() if r.pluggable == runtime.pluggable)
    return tuple(sorted({family for other in alike for family in other.families}))


def check_node_version(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that Google still serves a classic node's TensorFlow.

    Suggested are those alone with which the training package runs.
    """
    if not settings.is_node:
        return
    known = context.catalog.node_versions
    served = [
        version
        for version, entry in known.items()
        if entry.ended is None and context.catalog.packages.runs_with(version)
    ]
    wanted = settings.tpu.tensorflow_version
    if wanted is None:
        why, cure = "is required for architecture node", f"Set one, for example {served[0]}"
        yield Problem("tpu.tensorflowVersion", UNSET, why, cure)
    elif wanted not in known:
        why, cure = "is not a version of TPU Nodes", nearest(wanted, served)
        yield Problem("tpu.tensorflowVersion", wanted, why, cure)
    elif ended := known[wanted].ended:
        why, cure = f"is no longer supported on TPU Nodes since {ended}", nearest(wanted, served)
        yield Problem("tpu.tensorflowVersion", wanted, why, cure)


def check_trainer_version(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the trainer's TensorFlow is known."""
    wanted = settings.training.tensorflow_version
    if wanted and not is_version(wanted):
        cure = "Use one like 2.19.1"
        yield Problem("training.tensorflowVersion", wanted, "is not a version", cure)
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    if not settings.is_compute and not wanted and runtime and runtime.tensorflow is None:
        why = f"is required: the runtime {runtime.name} has no TensorFlow of its own"
        cure = "Set the version to install, for example 2.19.1"
        yield Problem("training.tensorflowVersion", UNSET, why, cure)


def is_version(text: str) -> bool:
    """Return whether a text is a version of TensorFlow."""
    return bool(_VERSION.fullmatch(text))


def trainer_tensorflow(settings: StackSettings, context: Context) -> str | None:
    """Return the trainer's TensorFlow: the one that is set, else the TPU's own.

    A machine of Compute Engine that runs jobs alone may do without. The trainer on JAX prepares
    data and traces steps with any: by default the newest that is locked with JAX.
    """
    without = NO_TENSORFLOW if settings.is_compute and settings.jobs.enabled else None
    if compute.backend_of(settings, context) is Backend.JAX:
        without = next(iter(context.catalog.packages.releases(entries.JAX_PACKAGE)))
    return settings.training.tensorflow_version or tpu_tensorflow(settings, context) or without


def tpu_software(settings: StackSettings, context: Context) -> str | None:
    """Return what a TPU runs with: see `CheckedStack`."""
    if settings.is_compute:
        host = compute.host_of(settings, context)
        return host.image if host else None
    node = settings.is_node
    return settings.tpu.tensorflow_version if node else settings.tpu.runtime_version


def tpu_tensorflow(settings: StackSettings, context: Context) -> str | None:
    """Return the TensorFlow that the TPU runs; None for a runtime without one."""
    if settings.is_node:
        return settings.tpu.tensorflow_version
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    return runtime.tensorflow if runtime else None


def warn_about_versions(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn if trainer and TPU run different releases of TensorFlow (tensorflow#40622).

    Patch releases have the same operations, so that they go together.
    """
    own, wanted = tpu_tensorflow(settings, context), settings.training.tensorflow_version
    if own and wanted and own.split(".")[:2] != wanted.split(".")[:2]:
        yield (
            f"training.tensorflowVersion is {wanted}, but the TPU runs TensorFlow {own}. On a real "
            'TPU they must match, or operations fail as "not registered". Remove '
            "training.tensorflowVersion to use the TPU's."
        )


# --- The TensorFlow of each machine exists for its Python


@dataclass(frozen=True)
class Installed:
    """A package that a start-up script installs.

    Attributes:
        where: the machine, as its setting is called.
        image: what the machine boots from.
        python: the image's; None if it is not known.
    """

    package: str
    version: str
    where: str
    image: str
    python: str | None

    @property
    def name(self) -> str:
        """What the package index calls it."""
        return VM_PACKAGE if self.package == entries.JAX_PACKAGE else self.package


def installed(settings: StackSettings, context: Context) -> Iterator[Installed]:
    """Yield what the start-up scripts install, unless an image brings it along."""
    version = trainer_tensorflow(settings, context)
    if version in (None, NO_TENSORFLOW):
        return
    if host := compute.host_of(settings, context):
        on_jax = compute.backend_of(settings, context) is Backend.JAX
        package = entries.JAX_PACKAGE if on_jax else TPU_PACKAGE
        yield Installed(package, version, "tpu.acceleratorType", host.image, host.python)
        return
    trains_on_vm = not settings.trains_on_tpu
    if trains_on_vm:
        image = settings.vm.image
        python = context.catalog.packages.image_python(image)
        yield Installed(VM_PACKAGE, version, "vm.image", image, python)
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    if settings.is_node or runtime is None:
        return
    if trains_on_vm and runtime.serves_grpc:
        return
    if runtime.tensorflow != version or runtime.broken:
        where = "tpu.runtimeVersion"
        yield Installed(TPU_PACKAGE, version, where, runtime.name, runtime.python)


def check_packages(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse releases that do not exist, or have no wheel for the image's Python.

    pip would say so on the machine, in the log of its start-up script, while the TPU waits for a
    trainer that never comes.
    """
    packages = context.catalog.packages
    version = trainer_tensorflow(settings, context)
    # What is wrong with a classic node's own version is said already.
    if version is None or not is_version(version) or any(check_node_version(settings, context)):
        return
    if not packages.runs_with(version):
        yield _wrong_version(
            settings,
            f"TensorFlow {version} is older than the training package supports "
            f"({packages.oldest_tensorflow})",
            f"Use a TPU with TensorFlow {packages.oldest_tensorflow} or newer",
        )
        return
    for wanted in installed(settings, context):
        yield from _missing(wanted, settings, context)
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    if settings.trains_on_tpu and runtime and runtime.tensorflow == version:
        yield from _old_python("tpu.runtimeVersion", runtime.name, runtime.python, packages)


def _old_python(
    where: str, image: str, python: str | None, packages: Packages
) -> Iterator[Problem]:
    """Yield a problem if an image's Python is known to be too old for the training package."""
    if python and numbers(python) < numbers(packages.oldest_python):
        why = f"has Python {python}, but the training package needs {packages.oldest_python}"
        cure = "Use a newer image" if where == "vm.image" else "Use a newer runtime"
        yield Problem(where, image, why, cure)


def _missing(wanted: Installed, settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Yield what is known to be wrong with a package; what may have come since is not."""
    packages = context.catalog.packages
    known = packages.releases(wanted.package)
    release = known.get(wanted.version)
    if why := _why_useless(release, wanted, known):
        fitting = [r.version for r in known.values() if not r.broken and _fits(r, wanted.python)]
        machine = "VM" if wanted.package == VM_PACKAGE else "TPU VM"
        yield _wrong_version(
            settings,
            f"{wanted.name} {wanted.version}, which the {machine} would install, {why}",
            f"Use {one_of(fitting[:4])}",
        )
        return
    python = wanted.python
    too_old = tuple(_old_python(wanted.where, wanted.image, python, packages))
    yield from too_old
    if not too_old and release and python and not _fits(release, python):
        yield Problem(
            wanted.where,
            wanted.image,
            f"has Python {python}, which {wanted.name} {wanted.version} doesn't support",
            f"Use an image with Python {one_of(release.pythons)}, or another "
            "training.tensorflowVersion",
        )


def _why_useless(
    release: Release | None, wanted: Installed, known: Mapping[str, Release]
) -> str | None:
    """Return what is wrong with a release itself; None if nothing is known."""
    if release is None:
        if is_newer(wanted.version, known):
            return None
        return "has no lock with JAX" if wanted.package == entries.JAX_PACKAGE else "doesn't exist"
    return f"drives no TPU ({release.broken})" if release.broken else None


def _wrong_version(settings: StackSettings, why: str, cure: str) -> Problem:
    """Return a problem with the version that is set, or that follows from the TPU's."""
    own = settings.training.tensorflow_version
    if own:
        return Problem("training.tensorflowVersion", own, f"is not possible: {why}", cure)
    return Problem("training.tensorflowVersion", UNSET, f"and {why}", cure)


def warn_about_packages(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of releases that the catalog does not know, and of images that it does not know."""
    for wanted in installed(settings, context):
        if wanted.version not in context.catalog.packages.releases(wanted.package):
            yield (
                f"training.tensorflowVersion: the catalog does not know {wanted.name} "
                f"{wanted.version}; if it doesn't exist, the startup script fails."
            )
        if wanted.python is None and wanted.where == "vm.image":
            yield (
                f"vm.image: the catalog does not know the Python of {wanted.image}; the training "
                f"package needs {context.catalog.packages.oldest_python} or newer."
            )


def warn_about_locks(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of packages that a start-up script installs as root without checking their hashes."""
    for wanted in installed(settings, context):
        release = context.catalog.packages.releases(wanted.package).get(wanted.version)
        if lock_of(wanted.package, wanted.version) is None:
            yield (
                f"training.tensorflowVersion: {wanted.name} {wanted.version} is installed as "
                "root without hash checks, because agent/tpu_agent/locks has none for it "
                "(docs/tpu-types.md#packages)."
            )
        elif release and release.wheels:
            yield (
                f"training.tensorflowVersion: the libtpu of {wanted.package} {wanted.version} is "
                "installed as root without a hash check, because Google's list of wheels has no "
                "hashes (docs/tpu-types.md#packages)."
            )


def wheels_of(settings: StackSettings, context: Context) -> str | None:
    """Return the address of the list that has what the package index lacks, if it is needed."""
    for wanted in installed(settings, context):
        release = context.catalog.packages.releases(wanted.package).get(wanted.version)
        if release and release.wheels:
            return release.wheels
    return None


def is_newer(version: str, known: Iterable[str]) -> bool:
    """Return whether a version is newer than all that are known, or no final release."""
    final = version.replace(".", "").isdecimal()
    return not final or numbers(version) > max(map(numbers, known))


def _fits(release: Release, python: str | None) -> bool:
    return python is None or python in release.pythons


# --- The files to upload and the name of the job

WHEEL_PATTERN = "tpu_stack_training-*.whl"
MANIFEST = "manifest.json"
_DIGEST = 8
_FILES = (".py", ".json", ".yaml", ".yml")
_SECONDS = 60.0
# As the trainer ends after wrong input (docs/own-model.md#results).
_WRONG_INPUT, _ENDING = 2, "training failed: "


def check_wheel(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the training wheel exists: machines get it by the bucket, not from an index."""
    wheel = find_wheel(settings, context.root)
    cure = "Build it with `tpustack wheel`, or set the path of one"
    if wheel is None:
        yield Problem("training.wheel", UNSET, f"and there is no dist/{WHEEL_PATTERN}", cure)
    elif not wheel.is_file() or wheel.suffix != ".whl":
        why = "is not a wheel" if wheel.exists() else "doesn't exist"
        where = "relative to the project's root"
        yield Problem("training.wheel", settings.training.wheel, why, f"{cure}, {where}")


def check_data(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the data directory exists and holds a data set, and nothing secret."""
    data = settings.training.data
    if data is None:
        return
    folder = context.root / data
    if bucket.is_around(folder, context.root):
        why = "is the project's folder or a parent of it, which would be uploaded completely"
        yield Problem("training.data", data, why, "Use a folder that contains only the dataset")
        return
    if not folder.is_dir():
        why = "is not a directory" if folder.exists() else "doesn't exist"
    elif not data_files(settings, context.root):
        why = "has no files"
    elif not (folder / MANIFEST).is_file():
        why = f"has no {MANIFEST}, which a training needs"
    else:
        files = data_files(settings, context.root).values()
        for why in bucket.refused_files(folder, files):
            cure = "Anyone who may read the bucket could read it. Remove it from the folder"
            yield Problem("training.data", data, why, cure)
        return
    cure = f"Fill it with `tpu-training data convert --source DIR --output {data}`, or leave "
    cure += "training.data out if the bucket already has the data"
    yield Problem("training.data", data, why, cure)


def check_job(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the job's name can be a folder in the bucket."""
    if not paths.NAME.fullmatch(settings.training.job):
        why = (
            "is not a job name (at most 63 lower-case letters, digits, hyphens, dots, underscores)"
        )
        yield Problem("training.job", settings.training.job, why, "Use one like mnist-1")


def check_args(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check the trainer's arguments: as the wheel that the machine will get reads them.

    A list of parameters here would be that of another release. The wheel answers in a process of
    its own, so that no code of a training runs in the engine's program.
    """
    args, wheel = settings.training.args, find_wheel(settings, context.root)
    for argument in args:
        if argument.partition("=")[0] == "--backend":
            why = "chooses what the machine has to install"
            yield Problem("training.args", argument, why, "Set training.backend instead")
            return
        value = argument.rpartition("=")[2]
        if value.endswith(_FILES) and "://" not in value:
            if settings.jobs.enabled:
                return  # The trials of a sweep have them, and files come with `--dir`.
            why = f"names the file {value}, which the VM doesn't have"
            cure = (
                "Set jobs.enabled, and send the file with `tpustack job submit --dir "
                'FOLDER --framework tensorflow --command "tpu-training train-and-evaluate …"`'
            )
            yield Problem("training.args", argument, why, cure)
            return
    whole = trainer_arguments(settings, context)
    if args and wheel is not None and (refusal := _refused(wheel, whole)):
        cure = "`tpu-training train-and-evaluate --help` lists all parameters"
        why = f"would end the training: {refusal.rstrip('?')}"
        yield Problem("training.args", " ".join(args), why, cure)


def trainer_arguments(settings: StackSettings, context: Context) -> tuple[str, ...]:
    """Return the trainer's arguments: those of the stack file, and what runs its steps."""
    on_jax = compute.backend_of(settings, context) is Backend.JAX
    return (*(["--backend=jax"] if on_jax else []), *settings.training.args)


@functools.cache
def _refused(wheel: Path, args: tuple[str, ...]) -> str | None:
    """Return why a wheel's trainer would refuse its arguments; None if it would not."""
    command = [
        *(sys.executable, "-m", "tpu_training", "train-and-evaluate", "--check"),
        *("--tpu=local", "--data=data", "--model-dir=model", *args),
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            # Without the modules and files of the working directory, which no machine has.
            cwd=wheel.parent,
            env={**os.environ, "PYTHONPATH": str(wheel.absolute())},
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = done.stderr.strip().rpartition(_ENDING)[2]
    return words if done.returncode == _WRONG_INPUT else None


def job_name(settings: StackSettings, root: Path) -> str:
    """Return the job's folder below `jobs/`: other data or other arguments make another job.

    A finished job is marked in its folder and not run again. With one folder for all, a stack that
    gets new data would not train on it.
    """
    manifest = root / (settings.training.data or "") / MANIFEST
    parts = [argument.encode() for argument in settings.training.args]
    if settings.training.data is not None and manifest.is_file():
        # The manifest holds the SHA-256 of each of the data set's files.
        parts.append(manifest.read_bytes())
    if not parts:
        return settings.training.job
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return f"{settings.training.job}-{digest[:_DIGEST]}"


def find_wheel(settings: StackSettings, root: Path) -> Path | None:
    """Return the wheel to upload: the one that is set, else the newest in dist/."""
    if settings.training.wheel:
        return root / settings.training.wheel
    built = list((root / "dist").glob(WHEEL_PATTERN))
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def data_files(settings: StackSettings, root: Path) -> dict[str, Path]:
    """Return the files to upload by their name below `data/`, without hidden ones.

    Those are of editors and file managers, and change without anyone's doing.
    """
    if settings.training.data is None:
        return {}
    folder = root / settings.training.data
    relative = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path
        for name, path in sorted(relative.items())
        if not any(part.startswith(".") for part in name.parts)
    }
