"""Bring a try's log to the bucket, in pieces that are written once and never changed."""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

from . import layout
from .store import Conflict, Store

# Between two pieces; a reader sees a line a little later. It doubles after so many of them, so that
# the log of a week has thousands of objects, not a million.
PAUSE, _LONGEST_PAUSE = 1.0, 60.0
_PIECES = 600
_LONGEST = 4 << 20
# fallocate(2): free what lies there, and leave the file as long as it is.
_PUNCH_HOLE, _KEEP_SIZE = 2, 1


class Shipping:
    """The log of one try.

    A piece's name is its offset, so that whoever goes on with it (a runner that was killed) never
    writes a byte twice, nor leaves one out.
    """

    def __init__(self, store: Store, log: Path, job: str, number: int) -> None:
        """Ship `log`, of the job's try of that number."""
        self._store, self._log, self._job, self._number = store, log, job, number
        self._offset: int | None = None
        self._pieces = 0
        self._next = 0.0

    def ship(self, now: float) -> None:
        """Write what is new, if it is time to. Raises StoreError."""
        if (now >= self._next or self._size() - (self._offset or 0) >= _LONGEST) and self._one():
            pause = PAUSE * 2.0 ** (self._pieces // _PIECES)
            self._next = now + min(pause, _LONGEST_PAUSE)

    def finish(self) -> None:
        """Write all that is left. Raises StoreError."""
        while self._one():
            pass

    def _one(self) -> bool:
        """Write a piece; return whether there was anything to write."""
        if self._offset is None:
            self._offset = self._shipped()
        try:
            with self._log.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_LONGEST)
        except FileNotFoundError:
            return False
        if not data:
            return False
        path = layout.piece(self._job, self._number, self._offset)
        try:
            self._store.write(path, data, generation=0)
        except Conflict:
            # A call that seemed to fail had worked, maybe with less.
            before, self._offset = self._offset, self._shipped()
            if self._offset == before:
                # Or it is an object that holds no byte, and nothing of this log.
                self._store.write(path, data)
            return True
        self._offset += len(data)
        self._pieces += 1
        self._free()
        return True

    def _size(self) -> int:
        return self._log.stat().st_size if self._log.exists() else 0

    def _shipped(self) -> int:
        """Return how much of the log is in the bucket, whatever else lies there."""
        found, size = [0], self._size()
        for item in self._store.items(layout.logs(self._job, self._number)):
            offset = layout.offset_of(item.path)
            if offset is not None and offset + item.size <= size:
                found.append(offset + item.size)
        self._pieces = len(found)
        return max(found)

    def _free(self) -> None:
        """Give the disk back what is in the bucket."""
        how = _PUNCH_HOLE | _KEEP_SIZE
        with contextlib.suppress(OSError, AttributeError), self._log.open("r+b") as file:
            length = ctypes.c_int64(self._offset or 0)
            ctypes.CDLL(None).fallocate(file.fileno(), how, ctypes.c_int64(0), length)
