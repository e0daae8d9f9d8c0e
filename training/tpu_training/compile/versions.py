"""The versions and sources that decide what is compiled. Loads no TensorFlow."""

import hashlib
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from tpu_training import __version__

_TENSORFLOW = ("tensorflow-cpu", "tensorflow-tpu", "tensorflow", "tf-nightly")
_LIBTPU = ("libtpu", "libtpu-nightly")
_PACKAGE = Path(__file__).parents[1]
# The parts of this package that a compiled program depends on.
_SOURCES = ("models", "loop", "compile/program", "compile/libtpu")


def versions() -> dict[str, str | None]:
    """Return the versions of this package, TensorFlow and libtpu; None for what is missing."""
    return {
        "tpu-stack-training": __version__,
        "tensorflow": _first(_TENSORFLOW),
        "libtpu": _first(_LIBTPU),
    }


@cache
def sources_digest() -> str:
    """Return a digest of this package's sources: a working copy changes without a new version."""
    digest = hashlib.sha256()
    for folder in _SOURCES:
        for path in sorted((_PACKAGE / folder).rglob("*.py")):
            digest.update(str(path.relative_to(_PACKAGE)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _first(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None
