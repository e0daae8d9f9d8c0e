"""The per-user cache: one folder per binary, complete or absent, never half."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from toolchain.pins import Module

_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}


def machine() -> str:
    """Name this machine as Go does, such as linux-amd64."""
    architecture = platform.machine().lower()
    return f"{sys.platform}-{_ARCHITECTURES.get(architecture, architecture)}"


def root() -> Path:
    """Return the folder that all of this user's clones share."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "tpu-stack" / "toolchain"


def build_key(module: Module) -> str:
    """Name a build after everything that goes into it."""
    digest = hashlib.sha256(f"{machine()} {module.package} {module.version}".encode())
    for script in module.scripts:
        digest.update(script.encode() + b"\0")
    sources = [p for p in module.path.glob("*.go") if not p.name.endswith("_test.go")]
    for path in [module.path / "go.mod", module.path / "go.sum", *sorted(sources)]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"{module.name}-{digest.hexdigest()[:20]}"


@contextlib.contextmanager
def locked(name: str, waiting: Callable[[], None]) -> Iterator[None]:
    """Let one process at a time make the entry; the kernel frees the lock of a killed one."""
    root().mkdir(parents=True, exist_ok=True)
    with (root() / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def entry(
    name: str, make: Callable[[Path], None], waiting: Callable[[], None] = lambda: None
) -> Path:
    """Return the cache's folder `name`, first letting `make` fill it if it is not there yet."""
    folder = root() / name
    if folder.is_dir():
        return folder
    with locked(name, waiting):
        if folder.is_dir():  # the process we waited for has made it
            return folder
        _remove_left_overs(name)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root()))
        try:
            make(unfinished)
            # mkdtemp makes folders that only their owner may enter.
            unfinished.chmod(0o755)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _remove_left_overs(name: str) -> None:
    """Drop what a killed process left behind; the lock proves that no process works on it."""
    for left_over in root().glob(f".{name}.*"):
        shutil.rmtree(left_over, ignore_errors=True)
