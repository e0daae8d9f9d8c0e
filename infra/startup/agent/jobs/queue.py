"""The records of all jobs in the bucket: read, listed, and changed on conditions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..versioned import Unreadable, sound
from . import layout
from .record import Job, Summary, parse
from .store import Conflict, Store

# Of a record; its requirements may have 256 KiB.
_LARGEST = 4 << 20


class Queue:
    """The queue of a bucket.

    Args:
        store: the bucket.
        say: gets a line, once, about each object that is no record.
    """

    def __init__(self, store: Store, say: Callable[[str], None]) -> None:
        self.store, self._say = store, say
        self._aside: dict[str, tuple[int, str]] = {}

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Return what a list tells of every job, by name. Raises StoreError.

        Without what is set aside: an object that is no record, or one of another format.
        """
        found = {}
        for item in self.store.items(layout.QUEUE):
            name = layout.job_of(item.path)
            if self._aside.get(item.path, (-1,))[0] == item.generation:
                continue
            try:
                is_named = layout.NAME.fullmatch(name) and item.path == layout.record(name)
                if not is_named or item.size > _LARGEST:
                    raise Unreadable(f"no record has this name or {item.size} bytes")
                found[name] = vars(sound(Summary, item.summary))
            except Unreadable as error:
                self._set_aside(item.path, item.generation, str(error))
        return found

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

        Where `how` gives None or changes nothing, or there is no such job, nothing is written.
        Whoever writes in between makes `how` look once more. Raises StoreError.
        """
        while True:
            found = self._read(name)
            changed = how(found[0]) if found else None
            if found is None or changed is None:
                return None
            if changed == found[0]:
                return changed
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
        path = layout.record(name)
        if (found := self.store.read(path)) is None:
            return None
        try:
            return parse(found[0], name), found[1]
        except Unreadable as error:
            self._set_aside(path, found[1], str(error))
            return None

    def _set_aside(self, path: str, generation: int, why: str) -> None:
        """Say once what is wrong with an object, and don't look at it again until it changes."""
        if self._aside.get(path) != (generation, why):
            self._aside[path] = generation, why
            self._say(f"{ascii(path)[1:-1]} is set aside: {why}")
