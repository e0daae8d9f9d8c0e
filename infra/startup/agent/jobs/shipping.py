"""Bring a try's log to the bucket, in pieces that are written once and never changed."""

from __future__ import annotations

from pathlib import Path

from . import layout
from .store import Conflict, Store

# Between two pieces; a reader sees a line a little later.
PAUSE = 1.0
_LONGEST = 4 << 20


class Shipping:
    """The log of one try.

    A piece's name is its offset, so that whoever goes on with it (a runner that was killed) never
    writes a byte twice, nor leaves one out.
    """

    def __init__(self, store: Store, log: Path, job: str, number: int) -> None:
        """Ship `log`, of the job's try of that number."""
        self._store, self._log, self._job, self._number = store, log, job, number
        self._offset: int | None = None
        self._next = 0.0

    def ship(self, now: float) -> None:
        """Write what is new, if it is time to. Raises StoreError."""
        if now >= self._next and self._one():
            self._next = now + PAUSE

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
            self._offset = self._shipped()
            return True
        self._offset += len(data)
        return True

    def _shipped(self) -> int:
        """Return how much of the log is in the bucket."""
        items = self._store.items(layout.logs(self._job, self._number))
        return max((layout.offset_of(item.path) + item.size for item in items), default=0)
