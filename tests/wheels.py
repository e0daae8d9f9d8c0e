"""Builds this project's wheels from copies of their sources, where nothing else lies."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What each distribution is made of, apart from its pyproject.toml and README.md.
PACKAGES = {
    ".": (
        "agent/tpu_agent",
        "bootstrap/tpu_bootstrap",
        "infra/tpu_infra",
        "policy/tpu_policy",
        "tpustack",
    ),
    "core": ("tpu_core",),
    # A machine installs this wheel alone.
    "training": ("tpu_training", "tpu_core"),
    "localcloud": ("localcloud",),
}
# The distribution with the name of the command: it has no package, and depends on the others.
COMMAND = "tpustack"
# What another process compiles has this name until it is complete, and is gone then.
UNFINISHED = shutil.ignore_patterns("*.pyc.*")
_MADE = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")


def build(source: str, folder: Path) -> Path:
    """Build the wheel of a folder of `PACKAGES`, or of `COMMAND`, reproducibly."""
    return _built("build_wheel", _copy(source, folder), folder / "wheels" / source)


def sources(source: str, folder: Path) -> Path:
    """Build the source distribution of a folder of `PACKAGES`, and return the wheel made from it.

    Of the checkout it has what its build takes, whatever else lies there.
    """
    archive = _built("build_sdist", _copy(source, folder), folder / "archive")
    shutil.unpack_archive(archive, folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    return _built("build_wheel", unpacked, folder / "again")


def _copy(source: str, folder: Path) -> Path:
    copy = folder / "sources" / source
    copy.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES.get(source, ()):
        place, into = ROOT / source / package, copy / package
        if not place.is_symlink():
            shutil.copytree(place, into, ignore=_MADE, dirs_exist_ok=True)
        elif not into.exists():
            # The build follows links, as in the checkout.
            into.symlink_to(place.resolve())
    for path in (f"{source}/pyproject.toml", f"{source}/README.md", "LICENSE"):
        shutil.copy(ROOT / path, copy)
    return copy


def _built(what: str, source: Path, target: Path) -> Path:
    # What pip or uv would call, each of which takes a second to get there.
    target = target.absolute()
    code = f"from setuptools import build_meta; print(build_meta.{what}({str(target)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=source,
        env=os.environ | {"SOURCE_DATE_EPOCH": "315532800"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return target / done.stdout.splitlines()[-1]
