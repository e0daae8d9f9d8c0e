"""The records of all jobs in the bucket: read, listed, and changed on conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpu_agent.jobs.record import ENDED, QUEUED, SUCCEEDED, Job, Summary, parse
from tpu_core import paths
from tpu_core.bucket import Bucket, Conflict
from tpu_core.records import Unreadable, sound

# Of a record; its requirements may have 256 KiB.
_LARGEST = 4 << 20


class Queue:
    """The queue of a bucket.

    Args:
        store: the bucket.
        say: gets a line, once, about each object that is no record.
    """

    def __init__(self, store: Bucket, say: Callable[[str], None]) -> None:
        self.store, self._say = store, say
        self._aside: dict[str, tuple[int, str]] = {}

    def summaries(self) -> dict[str, dict[str, Any]]:
        """Return what a list tells of every job, by name. Raises GoogleError.

        Without what is set aside: an object that is no record, or one of another format.
        """
        found = {}
        for item in self.store.items(paths.QUEUE):
            name = paths.job_of(item.path)
            if self._aside.get(item.path, (-1,))[0] == item.generation:
                continue
            try:
                is_named = paths.NAME.fullmatch(name) and item.path == paths.record(name)
                if not is_named or item.size > _LARGEST:
                    raise Unreadable(f"no record has this name or {item.size} bytes")
                found[name] = vars(sound(Summary, item.summary))
            except Unreadable as error:
                self._set_aside(item.path, item.generation, str(error))
        return found

    def read(self, name: str) -> Job | None:
        """Return a job; None if there is none. Raises GoogleError."""
        found = self._read(name)
        return found[0] if found else None

    def add(self, job: Job) -> None:
        """Add a job, whole or not at all. Raises Conflict if there is one of its name."""
        path = paths.record(job.name)
        self.store.write(path, job.to_json(), generation=0, summary=job.summary())

    def change(self, name: str, how: Callable[[Job], Job | None]) -> Job | None:
        """Replace a job's record by what `how` makes of it; return the new one.

        Where `how` gives None or changes nothing, or there is no such job, nothing is written.
        If someone writes in between, `how` is called again. Raises GoogleError.
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
                    paths.record(name),
                    changed.to_json(),
                    generation=found[1],
                    summary=changed.summary(),
                )
            except Conflict:
                continue
            return changed

    def ring(self) -> None:
        """Tell the runner that something has changed; it would see it later anyway."""
        self.store.write(paths.BELL, b"")

    def _read(self, name: str) -> tuple[Job, int] | None:
        path = paths.record(name)
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


Summaries = Mapping[str, Mapping[str, Any]]
"""What is known of each job, by name."""


def waiting(jobs: Summaries) -> list[str]:
    """Return the jobs that may start, the next one first.

    Those of a higher priority come first, then those that were submitted earlier. Vertex AI starts
    its own.
    """

    def rank(name: str) -> tuple[float, float, str]:
        return -jobs[name]["priority"], jobs[name]["submitted"], name

    ours = (name for name, job in jobs.items() if job["state"] == QUEUED and not job["vertex"])
    return sorted((name for name in ours if all(_succeeded(jobs, name))), key=rank)


def in_vain(jobs: Summaries) -> Iterator[tuple[str, str]]:
    """Yield the jobs that wait for one that will never succeed, and why it won't."""
    for name, job in jobs.items():
        if job["state"] != QUEUED:
            continue
        for one in job["after"]:
            state = jobs[one]["state"] if one in jobs else "gone"
            if state in (*ENDED, "gone") and state != SUCCEEDED:
                yield name, f"it comes after {one}, which is {state}"
                break


def _succeeded(jobs: Summaries, name: str) -> Iterator[bool]:
    return (one in jobs and jobs[one]["state"] == SUCCEEDED for one in jobs[name]["after"])
