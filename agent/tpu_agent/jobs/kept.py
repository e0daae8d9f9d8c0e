"""Python environments that this machine keeps between attempts and jobs.

Each is a folder, KEY, named by the digest of what decides its content. It is the machine's: jobs
read it and never change it. While it is built or removed it is called KEY.new. A process that
builds or uses one locks its folder. That lock ends with the process: a killed one leaves nothing
that seems whole or in use.
"""

import contextlib
import fcntl
import os
import shutil
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

MOST = 4
"""How many are kept."""
FREE = 0.5
"""The part of the disk that is to be free for what jobs write: fewer are kept otherwise."""


class Kept:
    """The environments in a folder."""

    def __init__(
        self,
        folder: Path,
        now: Callable[[], float] = time.time,
        free: Callable[[Path], float] | None = None,
    ) -> None:
        """Use a folder; `now` is the time of a use, and `free` the free part of a folder's disk."""
        self._folder, self._now, self._free = folder, now, free or _free
        folder.mkdir(exist_ok=True)

    def find(self, key: str) -> Path | None:
        """Return the whole one of that key, if there is one; it stays while this object lives."""
        path = self._folder / key
        with self._alone():
            found = path.exists()
            if found:
                self._use(path, fcntl.LOCK_SH)
            self._trim()
        return path if found else None

    def build(self, key: str, fill: Callable[[Path], None]) -> Path | None:
        """Build one; return it as `find` does, or None while another process does the same.

        Args:
            key: its digest.
            fill: fills a new folder, and takes it from the job's user. What it raises is raised,
                and nothing is kept.
        """
        new, path = being_built(self._folder / key), self._folder / key
        with self._alone():
            if new.exists() or path.exists():
                return None
            new.mkdir()
            lock = self._use(new, fcntl.LOCK_EX)
        try:
            fill(new)
            # A machine may vanish at any instant, and its disk come back.
            os.sync()
            new.rename(path)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
        fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(path, (self._now(), self._now()))
        return path

    def trim(self) -> None:
        """Remove what was left half, and those used longest ago while there are too many."""
        with self._alone():
            self._trim()

    def _trim(self) -> None:
        unused = [path for path in self._folder.iterdir() if path.is_dir() and _is_unused(path)]
        for path in unused:
            if path.suffix:
                shutil.rmtree(path, ignore_errors=True)
        whole = sorted((path.stat().st_mtime, path) for path in unused if not path.suffix)
        while whole and (len(whole) >= MOST or self._free(self._folder) < FREE):
            path = whole.pop(0)[1]
            shutil.rmtree(path.rename(being_built(path)), ignore_errors=True)

    def _use(self, path: Path, how: int) -> int:
        """Lock an environment until this object goes, and note the time."""
        lock = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, lock)
        fcntl.flock(lock, how)
        os.utime(path, (self._now(), self._now()))
        return lock

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        # No job can lock what it can't open.
        lock = os.open(self._folder / "lock", os.O_CREAT | os.O_WRONLY, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)


def being_built(path: Path) -> Path:
    """Return where an environment was built, which its programs name."""
    return path.with_suffix(".new")


def _is_unused(path: Path) -> bool:
    lock = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _free(folder: Path) -> float:
    disk = shutil.disk_usage(folder)
    return disk.free / disk.total
