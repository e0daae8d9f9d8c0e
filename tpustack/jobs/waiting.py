"""Waits for a job, and follows what it writes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator

from tpu_agent.jobs.queue import Job, Queue
from tpu_core import paths
from tpu_core.bucket import Item
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs.vertex.follow import refreshed

_LOOK = 1.0
# Vertex AI knows more than the record only of what never ran, or was killed.
_ASK_EVERY = 10


def read(queue: Queue, name: str, *, ask: bool = True) -> Job:
    """Return a job, after asking Vertex AI about one that it runs.

    Raises:
        UsageError: there is none.
    """
    if not paths.NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no job name. `tpustack job list` names them")
    job = queue.read(name)
    if job is None:
        raise UsageError(
            f"there is no job {name} in gs://{queue.store.bucket}. `tpustack job list` names them"
        )
    return refreshed(queue, job) if ask else job


def wait(
    queue: Queue,
    name: str,
    timeout: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.monotonic,
) -> Job:
    """Return a job once it is over. Raises TpustackError after `timeout` seconds."""
    deadline = now() + timeout if timeout is not None else None
    looks = itertools.count()
    while not (job := read(queue, name, ask=next(looks) % _ASK_EVERY == 0)).is_over:
        if deadline is not None and now() >= deadline:
            raise TpustackError(f"{name} is still {job.state} after {timeout:g} s")
        sleep(_LOOK)
    return job


def log(queue: Queue, name: str) -> Iterator[bytes]:
    """Yield what a job has written so far, in pieces."""
    for item in queue.store.items(paths.logs(name)):
        yield _content(queue, item)


def follow(queue: Queue, name: str, sleep: Callable[[float], None] = time.sleep) -> Iterator[bytes]:
    """Yield what a job writes until it is over."""
    seen = ""
    for look in itertools.count():
        # All of its log is in the bucket before it is said to be over.
        is_over = read(queue, name, ask=look % _ASK_EVERY == 0).is_over
        for item in queue.store.items(paths.logs(name), behind=seen):
            seen = item.path
            yield _content(queue, item)
        if is_over:
            return
        sleep(_LOOK)


def _content(queue: Queue, item: Item) -> bytes:
    found = queue.store.read(item.path)
    return found[0] if found else b""
