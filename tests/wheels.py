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
    ".": ("agent/tpu_agent", "bootstrap", "infra", "policy", "tpustack"),
    "core": ("tpu_core",),
    # A machine installs this wheel alone.
    "training": ("tpu_training", "../core/tpu_core"),
    "localcloud": ("localcloud",),
}
_MADE = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")


def build(source: str, folder: Path) -> Path:
    """Build the wheel of a folder of `PACKAGES`, reproducibly."""
    copy, target = folder / "sources" / source, folder / "wheels" / source
    copy.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES[source]:
        into = copy / package
        shutil.copytree(ROOT / source / package, into, ignore=_MADE, dirs_exist_ok=True)
    for path in (f"{source}/pyproject.toml", f"{source}/README.md", "LICENSE"):
        shutil.copy(ROOT / path, copy)
    # What pip or uv would call, each of which takes a second to get there.
    code = f"from setuptools import build_meta; build_meta.build_wheel({str(target)!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copy,
        env=os.environ | {"SOURCE_DATE_EPOCH": "315532800"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return next(target.glob("*.whl"))
