"""Packages of npm, as files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tpustack.errors import TpustackError

_SECONDS = 300


def pack(package: str, folder: Path) -> Path:
    """Fetch `package` (NAME@VERSION) into `folder` and return its archive.

    Raises:
        TpustackError: when there is no npm, or it does not get the package.
    """
    npm = shutil.which("npm")
    if npm is None:
        raise TpustackError("npm is not installed")
    done = subprocess.run(
        [npm, "pack", package, "--silent"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode != 0:
        raise TpustackError(f"npm pack {package}: {done.stderr.strip()[-200:]}")
    return next(folder.glob("*.tgz"))
