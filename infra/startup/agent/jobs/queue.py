"""The records of all jobs in the bucket: read, listed, and changed on conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import layout
from .record import Job, Unreadable, parse
from .store import Conflict, Store


class Queue:
    """The queue of a bucket.

    Args:
        store: the bucket.
        say: gets a line about each record that is none.
    """

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self.store, self._say = store, say

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Return what a list tells of every job, by name. Raises StoreError."""
        return {layout.job_of(item.path): item.summary for item in self.store.items(layout.QUEUE)}

    def read(self, name: str) -> Job | None:
        """Return a job; None if there is none. Raises StoreError."""
        found = self._read(name)
        return found[0] if found else None

    def add(self, job: Job) -> None:
        """Add a job, whole or not at all. Raises Conflict if there is one of its name."""
        path = layout.record(job.name)
        self.store.write(path, job.to_json(), generation=0, summary=job.summary())

    def change(self, name: str, how: Callable[[Job], Job | None]) -> Job | None:
        """Write a job anew as `how` makes it of what is there; return it.

        Where `how` gives None, or there is no such job, nothing is written. Whoever writes in
        between makes `how` look once more. Raises StoreError.
        """
        while True:
            found = self._read(name)
            changed = how(found[0]) if found else None
            if found is None or changed is None:
                return None
            try:
                self.store.write(
                    layout.record(name),
                    changed.to_json(),
                    generation=found[1],
                    summary=changed.summary(),
                )
            except Conflict:
                continue
            return changed

    def ring(self) -> None:
        """Tell the runner that something has changed; it would see it later anyway."""
        self.store.write(layout.BELL, b"")

    def _read(self, name: str) -> tuple[Job, int] | None:
        found = self.store.read(layout.record(name))
        try:
            return (parse(found[0], name), found[1]) if found else None
        except Unreadable as error:
            self._say(f"{layout.record(name)} is left alone: {error}")
            return None
