"""Packs a folder: what its ignore files leave, nothing secret, nothing from elsewhere."""

from __future__ import annotations

import gzip
import hashlib
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING

from tpustack.errors import UsageError
from tpustack.jobs.secrets import why_secret

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILES = (".gitignore", ".tpustackignore")
_ALWAYS = (".git", ".hg", ".svn", "__pycache__", ".venv", "venv", ".DS_Store", "node_modules")
MOST_BYTES = 200 << 20
_MOST_FILES = 20_000
_SHOWN = 10


@dataclass(frozen=True)
class Archive:
    """What a job brings along.

    Attributes:
        file: its content, from the beginning.
        size: in bytes.
        sha256: its digest: the same files always give the same.
        names: the files in it.
    """

    file: IO[bytes]
    size: int
    sha256: str
    names: frozenset[str]


def pack(folder: Path, most_bytes: int = MOST_BYTES) -> Archive:
    """Pack a folder as .tar.gz.

    Raises:
        UsageError: with everything that is wrong with it, at once.
    """
    if not folder.is_dir():
        why = "is no folder" if folder.exists() else "does not exist"
        raise UsageError(f"--dir: {folder} {why}. Give the folder with the job's files")
    paths = list(_files(folder, folder, []))
    problems = list(_problems(folder, paths, most_bytes))
    if problems:
        left = len(problems) - _SHOWN
        shown = [*problems[:_SHOWN], *([f"and {left} more like these"] if left > 0 else [])]
        raise UsageError("\n".join(f"--dir: {problem}" for problem in shown))
    return _archive(folder, paths)


def of_file(path: Path) -> Archive:
    """Return a file as an archive. Raises OSError."""
    file = path.open("rb")
    digest = hashlib.sha256()
    while part := file.read(1 << 20):
        digest.update(part)
    size = file.tell()
    file.seek(0)
    return Archive(file, size, digest.hexdigest(), frozenset({path.name}))


def _files(root: Path, folder: Path, specs: list[tuple[Path, GitIgnoreSpec]]) -> Iterator[Path]:
    """Yield files and links below a folder, but for what is ignored, in order."""
    specs = [*specs, *_read_ignored(folder)]
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if path.name in _ALWAYS or _is_ignored(path, specs, is_folder=is_folder):
            continue
        if is_folder:
            yield from _files(root, path, specs)
        else:
            yield path


def _read_ignored(folder: Path) -> Iterator[tuple[Path, GitIgnoreSpec]]:
    from pathspec import GitIgnoreSpec

    for name in IGNORE_FILES:
        path = folder / name
        if path.is_file():
            lines = path.read_text("utf-8", errors="replace").splitlines()
            yield folder, GitIgnoreSpec.from_lines(lines)


def _is_ignored(path: Path, specs: list[tuple[Path, GitIgnoreSpec]], *, is_folder: bool) -> bool:
    """Return what the last rule says that speaks of a path: a later file goes before."""
    slash = "/" if is_folder else ""
    for folder, spec in reversed(specs):
        found = spec.check_file(f"{path.relative_to(folder).as_posix()}{slash}")
        if found.include is not None:
            return found.include
    return False


def _problems(folder: Path, paths: list[Path], most_bytes: int) -> Iterator[str]:
    size = sum(path.lstat().st_size for path in paths)
    if not paths:
        yield f"{folder} has no files that are not ignored"
    if size > most_bytes or len(paths) > _MOST_FILES:
        yield (
            f"{folder} has {len(paths)} files of {size / (1 << 20):.0f} MiB together, and at most "
            f"{_MOST_FILES} of {most_bytes >> 20} MiB go along. Name what the job does not need in "
            f"{IGNORE_FILES[1]}, and put data into the bucket"
        )
        return
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            yield from _problems_of_link(folder, path, name)
        elif not path.is_file():
            yield f"{name} is neither file nor folder. Name it in {IGNORE_FILES[1]}"
        elif why := why_secret(path):
            yield f"{name} must not go along: {why}. Name it in {IGNORE_FILES[1]}"


def _problems_of_link(folder: Path, path: Path, name: str) -> Iterator[str]:
    target = os.readlink(path)
    inside = folder.resolve()
    if os.path.isabs(target) or not (path.parent / target).resolve().is_relative_to(inside):
        yield f"{name} is a link to {target}, outside of the folder. Name it in {IGNORE_FILES[1]}"


def _archive(folder: Path, paths: list[Path]) -> Archive:
    file = TemporaryFile()  # noqa: SIM115 # It is the result.
    # Neither times nor owners count, or the same files would be uploaded twice.
    with (
        gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for path in paths:
            info = tar.gettarinfo(path, path.relative_to(folder).as_posix())
            info.mtime = info.uid = info.gid = 0
            info.uname = info.gname = ""
            info.mode = 0o755 if info.mode & 0o100 else 0o644
            if info.isfile() or info.islnk():
                info.type, info.linkname = tarfile.REGTYPE, ""
                info.size = path.stat().st_size
                with path.open("rb") as content:
                    tar.addfile(info, content)
            else:
                tar.addfile(info)
    digest, size = hashlib.sha256(), file.tell()
    file.seek(0)
    while part := file.read(1 << 20):
        digest.update(part)
    file.seek(0)
    names = frozenset(path.relative_to(folder).as_posix() for path in paths)
    return Archive(file, size, digest.hexdigest(), names)
