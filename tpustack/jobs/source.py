"""What a job brings along: a folder, a wheel, or a commit of a git repository."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from tpustack.errors import TpustackError, UsageError
from tpustack.jobs.pack import MOST_BYTES, Archive, of_file, pack

# Nothing that runs a program of the repository's choice.
_PROTOCOLS = "https:ssh:git:file"
_WHEEL = re.compile(r"[A-Za-z0-9_.]+-[A-Za-z0-9_.!+]+(-\d\w*)?-\w[\w.]*-\w[\w.]*-\w[\w.]*\.whl")


@dataclass(frozen=True)
class Source:
    """An archive, its kind as the job's record names it, and where it came from, for people."""

    kind: str = "none"
    archive: Archive | None = None
    origin: str = ""


@contextlib.contextmanager
def source_of(folder: Path | None, wheel: Path | None, git: str | None) -> Iterator[Source]:
    """Return what one of the three arguments means; nothing without any.

    Raises:
        UsageError: for more than one, or one that can't be used.
        TpustackError: when git fails.
    """
    if sum(one is not None for one in (folder, wheel, git)) > 1:
        raise UsageError("--dir, --wheel and --git exclude each other: a job has one source")
    if folder is not None:
        yield Source("folder", pack(folder), str(folder.resolve()))
    elif wheel is not None:
        yield Source("wheel", _wheel(wheel), wheel.name)
    elif git is not None:
        with TemporaryDirectory() as temporary:
            commit = _check_out(git, Path(temporary))
            yield Source("folder", pack(Path(temporary)), f"{git.rpartition('@')[0]}@{commit}")
    else:
        yield Source()


def _wheel(path: Path) -> Archive:
    if not _WHEEL.fullmatch(path.name) or not zipfile.is_zipfile(path):
        why = "is no wheel" if path.exists() else "does not exist"
        raise UsageError(f"--wheel: {path} {why}. `python -m build --wheel` makes one")
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"--wheel: {path} has more than {MOST_BYTES >> 20} MiB")
    return of_file(path)


def _check_out(git: str, folder: Path) -> str:
    """Fetch one commit into a folder, with the person's own rights; return its hash."""
    url, at, ref = git.rpartition("@")
    # The user's name in an ssh URL has an @ of its own.
    if not at or not url or not ref or "/" in ref.partition(":")[2] or ref.startswith("-"):
        raise UsageError(
            f"--git: {git} names no commit. Write it like https://github.com/OWNER/NAME@v1.2"
        )
    if url.startswith("-"):
        raise UsageError(f"--git: {url} is no address of a repository")
    _git(folder, "init", "--quiet")
    _git(folder, "fetch", "--quiet", "--depth=1", "--no-tags", "--", url, ref)
    _git(folder, "-c", "core.symlinks=true", "checkout", "--quiet", "FETCH_HEAD")
    return _git(folder, "rev-parse", "HEAD").strip()


def _git(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_TERMINAL_PROMPT": "0"}
    try:
        done = subprocess.run(
            ["git", "-c", "core.hooksPath=/dev/null", *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise TpustackError("--git needs git, which is not installed here") from None
    if done.returncode != 0:
        raise UsageError(f"--git: git can't fetch it: {done.stderr.strip()}")
    return done.stdout
