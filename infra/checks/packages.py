"""Checks that the TensorFlow of each machine exists for its Python."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from infra.catalog.model import Release
from infra.catalog.packages import TPU_PACKAGE, VM_PACKAGE, Packages, numbers
from infra.checks.context import Context, one_of
from infra.checks.versions import is_served, is_version, trainer_tensorflow
from infra.settings import StackSettings
from infra.settings.problems import UNSET, Problem
from infra.settings.tpu import Architecture
from infra.settings.training import RunOn
from tpu_agent.bundle import lock_of


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


def installed(settings: StackSettings, context: Context) -> Iterator[Installed]:
    """Yield what the start-up scripts install, unless an image brings it along."""
    version = trainer_tensorflow(settings, context)
    if version is None:
        return
    trains_on_vm = settings.training.run_on is RunOn.VM
    if trains_on_vm:
        image = settings.vm.image
        python = context.catalog.packages.image_python(image)
        yield Installed(VM_PACKAGE, version, "vm.image", image, python)
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    if settings.architecture is not Architecture.VM or runtime is None:
        return
    if trains_on_vm and runtime.serves_grpc:
        return
    if runtime.tensorflow != version or runtime.broken:
        where = "tpu.runtimeVersion"
        yield Installed(TPU_PACKAGE, version, where, runtime.name, runtime.python)


def check_packages(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse releases that do not exist, or have no wheel for the image's Python."""
    packages = context.catalog.packages
    version = trainer_tensorflow(settings, context)
    if version is None or not is_version(version) or not is_served(settings, context):
        return
    if not packages.runs_with(version):
        yield _wrong_version(
            settings,
            f"TensorFlow {version} is older than what the training package runs with "
            f"({packages.oldest_tensorflow})",
            f"Use a TPU with TensorFlow {packages.oldest_tensorflow} or newer",
        )
        return
    for wanted in installed(settings, context):
        yield from _missing(wanted, settings, context)
    runtime = context.catalog.runtime(settings.tpu.runtime_version or "")
    if settings.training.run_on is RunOn.TPU and runtime and runtime.tensorflow == version:
        yield from _old_python("tpu.runtimeVersion", runtime.name, runtime.python, packages)


def _old_python(
    where: str, image: str, python: str | None, packages: Packages
) -> Iterator[Problem]:
    """Yield a problem if an image's Python is known to be too old for the training package."""
    if python and numbers(python) < numbers(packages.oldest_python):
        yield Problem(
            where,
            image,
            f"has Python {python}, but the training package needs {packages.oldest_python}",
            "Use a newer image" if where == "vm.image" else "Use a newer runtime",
        )


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
            f"{wanted.package} {wanted.version}, which the {machine} would install, {why}",
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
            f"has Python {python}, for which there is no {wanted.package} {wanted.version}",
            f"Use an image with Python {one_of(release.pythons)}, or another "
            "training.tensorflowVersion",
        )


def _why_useless(
    release: Release | None, wanted: Installed, known: Mapping[str, Release]
) -> str | None:
    """Return what is wrong with a release itself; None if nothing is known."""
    if release is None:
        return None if is_newer(wanted.version, known) else "does not exist"
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
                f"training.tensorflowVersion: the catalog does not know {wanted.package} "
                f"{wanted.version}; if it does not exist, the start-up script fails."
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
                f"training.tensorflowVersion: {wanted.package} {wanted.version} is installed as "
                "root without checking hashes: agent/tpu_agent/locks has none for it "
                "(docs/vm.md#packages)."
            )
        elif release and release.wheels:
            yield (
                f"training.tensorflowVersion: the libtpu of {wanted.package} {wanted.version} is "
                "installed as root without checking a hash: it is in Google's own list of wheels, "
                "which has none (docs/vm.md#packages)."
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
