"""Tell people how jobs have ended, beside the jobs: no failure of a message ever disturbs one.

A mark in the bucket says that a job's end has been told; it is written afterwards. So each end is
told at least once, and twice only if the runner is killed just in between.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..messages import Send, Senders, tell_each
from . import layout
from .order import Summaries
from .record import ENDED, SUCCEEDED
from .store import Conflict, Store

# What has ended before is nobody's news, also where the messages could not be sent so long.
_NEWS = 86400.0
_LONGEST_PAUSE = 300.0


@dataclass
class Known:
    """Since when those of a kind are told, and the marks of what they have been told."""

    since: float
    told: set[str]


class Messages:
    """The ends of the jobs of one bucket.

    Args:
        store: the bucket, through calls of its own: another thread uses it.
        senders: looks whom to tell.
        time: seconds since the epoch.
        say: writes a line to the journal.
    """

    def __init__(
        self,
        store: Store,
        senders: Senders,
        time: Callable[[], float],
        say: Callable[[str], None],
    ) -> None:
        self._store, self._senders, self._time, self._say = store, senders, time, say
        self._known: dict[str, Known] = {}
        self._failed = ""

    def send(self, jobs: Summaries) -> None:
        """Tell all ends that have not been told. Raises any exception; call it once more then."""
        if failed := tell_each(self._senders(), lambda kind, send: self._send(kind, send, jobs)):
            raise failed

    def _send(self, kind: str, send: Send, jobs: Summaries) -> None:
        if kind not in self._known:
            self._known[kind] = self._begin(kind)
        known = self._known[kind]
        for name, job in self._news(jobs, known.since):
            path = layout.told(kind, name)
            if path not in known.told:
                send(text_of(name, job, self._store.bucket))
                known.told.add(path)
                self._store.write(path, b"")

    def _news(self, jobs: Summaries, since: float) -> Iterator[tuple[str, Mapping[str, Any]]]:
        oldest = max(since, self._time() - _NEWS)
        for name, job in jobs.items():
            if job["state"] in ENDED and (job["ended"] or 0.0) >= oldest:
                yield name, job

    def _begin(self, kind: str) -> Known:
        """Return what those of a kind know: jobs of the time before they were named are no news."""
        path = layout.told_since(kind)
        with contextlib.suppress(Conflict):
            self._store.write(path, str(self._time()).encode(), generation=0)
        found = self._store.read(path)
        told = {item.path for item in self._store.items(layout.told(kind))}
        try:
            return Known(float(found[0]) if found else 0.0, told)
        except ValueError:
            self._say(f"{path} is set aside: it is no number of seconds")
            return Known(self._time(), told)

    def keep(self, news: queue.Queue[Summaries], sleep: Callable[[float], None]) -> None:
        """Send what comes, each list until it works or a newer one is there."""
        pause = 1.0
        jobs = news.get()
        while True:
            try:
                self.send(jobs)
                pause, self._failed = 1.0, ""
                jobs = news.get()
            except Exception as error:  # Of whatever kind: a message is not worth a runner.
                self._complain(f"a message could not be sent, trying again: {error}")
                sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                with contextlib.suppress(queue.Empty):
                    jobs = news.get_nowait()

    def _complain(self, text: str) -> None:
        if text != self._failed:
            self._failed = text
            self._say(text)


def start(messages: Messages) -> Callable[[Summaries], None]:
    """Start a thread that sends; return what it is told of the queue, which never waits."""
    news: queue.Queue[Summaries] = queue.Queue(1)
    thread = threading.Thread(
        target=messages.keep, args=(news, time.sleep), name="messages", daemon=True
    )
    thread.start()
    return lambda jobs: replace(news, jobs)


def replace(news: queue.Queue[Summaries], jobs: Summaries) -> None:
    """Put a list into a queue of one place, for its only writer: the newest has all there is."""
    with contextlib.suppress(queue.Empty):
        news.get_nowait()
    news.put_nowait(jobs)


def text_of(name: str, job: Mapping[str, Any], bucket: str) -> str:
    """Return what people are told of an end."""
    state = "has succeeded" if job["state"] == SUCCEEDED else f"is {job['state']}"
    if job["state"] != SUCCEEDED and job["code"] is not None:
        state += f" (exit code {job['code']})"
    reason = f": {job['reason']}" if job["reason"] else ""
    return f"{name} {state}{_ran(job)}{reason}\ngs://{bucket}/{layout.folder(name)}"


def _ran(job: Mapping[str, Any]) -> str:
    if not job["started"]:
        return ""
    minutes = (job["ended"] - job["started"]) / 60
    return f" after {minutes:.1f} min" + (f" in its try {job['tries']}" if job["tries"] > 1 else "")
