"""Have all hosts of a slice run the same try, where the framework needs a process on each.

Worker 0 has the job, its lease, its record and its log. It writes into the bucket which try runs
on all hosts; the others follow that, and write that it runs there and how it has ended. A try that
fails on one of them, or of which one tells nothing, ends on all: libtpu and the frameworks would
wait for that host.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from infra.startup.agent.jobs.follower import World
from infra.startup.agent.jobs.store import Item, Store
from infra.startup.agent.jobs.transport import StoreError

from ..versioned import Unreadable, sound, stamped
from . import layout
from .attempt import Attempt
from .follower import Follower
from .lease import DURATION
from .queue import Queue
from .record import ON_EACH_HOST, RUNNING, Job, Outcome, Spec
from .variables import Tpu, content_of

_LOOK = 2.0
# How often a host says that the try runs there, and for how long it may say nothing: its machine
# may still be coming up.
_BEAT = 60.0
_SILENCE = 600.0
_RUNS = "runs"
_STILL = stamped(vars(Outcome(_RUNS)))

_T = TypeVar("_T")


@dataclass(frozen=True)
class Announced:
    """Which try is to run on all hosts."""

    job: str
    number: int


def runs_on_all(tpu: Tpu, spec: Spec) -> bool:
    """Return whether a job runs on other hosts than worker 0, too."""
    return tpu.is_here and len(tpu.hosts) > 1 and spec.framework in ON_EACH_HOST


def announce(store: Store, tpu: str, job: Job) -> None:
    """Have the other hosts run a job's last try. Raises StoreError."""
    what = stamped(vars(Announced(job.name, len(job.tries))))
    store.write(layout.on_all_hosts(tpu), b"", summary=what)


def failure(store: Store, job: Job, hosts: int, followed: float) -> Outcome | None:
    """Return how a job's last try failed on another host, if it did. Raises StoreError.

    Args:
        store: the bucket.
        job: the job.
        hosts: how many hosts the TPU has.
        followed: for how many seconds this has been asked.
    """
    folder = layout.hosts(job.name, job.tries[-1].number)
    reports = {item.path.removeprefix(folder): item for item in store.items(folder)}
    for host in range(1, hosts):
        report = reports.get(f"{host}.json")
        told = _told(Outcome, report)
        silence = report.age if report and told else followed
        outcome = _failed(told) if told and told.why != _RUNS else _lost(told, silence)
        if outcome is not None:
            said = f"host {host} of the TPU: {outcome.said}"
            return Outcome(outcome.why, outcome.code, said)
    return None


def _told(kind: type[_T], item: Item | None) -> _T | None:
    """Return what an object's metadata tells; None if that is nothing or damaged."""
    with contextlib.suppress(Unreadable):
        return sound(kind, item.summary) if item else None
    return None


def _failed(told: Outcome) -> Outcome | None:
    if told.why == "stopped" or (told.why, told.code) == ("exited", 0):
        return None
    return replace(told, said=told.said or f"exit code {told.code}")


def _lost(told: Outcome | None, silence: float) -> Outcome | None:
    if silence < _SILENCE:
        return None
    what = "has said nothing more" if told else "has not begun"
    where = "see `journalctl --unit jobs` there, or its serial port"
    return Outcome("preempted", None, f"it {what} for {_SILENCE / 60:g} minutes; {where}")


class Host:
    """Another host of a slice than worker 0, which runs what that has all hosts run.

    Args:
        store: the bucket.
        tpu: the TPU's name.
        number: the host's.
        ready: returns the TPU if it can be used.
        folder: where tries lie on this host.
        world: the host.
    """

    def __init__(
        self,
        store: Store,
        tpu: str,
        number: int,
        ready: Callable[[], Tpu | None],
        folder: Path,
        world: World,
    ) -> None:
        self._store, self._tpu, self._number, self._ready = store, tpu, number, ready
        self._folder, self._world = folder, world
        self._queue = Queue(store, world.say)
        self._beaten = -_SILENCE

    def step(self) -> None:
        """Run what is to run now, to its end here. Raises OSError if that can't be asked."""
        job = self._announced()
        tpu = self._ready() if job is not None else None
        if job is None or tpu is None:
            self._world.sleep(_LOOK)
            return
        content = content_of(job, self._store.bucket, replace(tpu, worker=self._number))
        host = str(self._number)
        self._world.say(f"{job.name} runs on host {host} (try {job.tries[-1].number})")
        self._beaten = -_SILENCE
        Follower(
            self._store, self._folder, self._world, host, lambda _: content, self._tell, self._beat
        ).run_try(job)

    def _beat(self, job: Job) -> None:
        """Write that a try runs here, from time to time."""
        now = self._world.time()
        # The clock may be set.
        if abs(now - self._beaten) < _BEAT:
            return
        try:
            self._store.write(self._path(job, "json"), b"", summary=_STILL)
        except StoreError as error:
            self._world.say(f"trying again: {error}")
        else:
            self._beaten = now

    def _tell(self, job: Job, attempt: Attempt, outcome: Outcome) -> None:
        """Write how a try has ended here, again and again until it is written."""
        while True:
            try:
                with attempt.log.open("rb") as file:
                    self._store.upload(self._path(job, "log"), file, attempt.log.stat().st_size)
                report = stamped(vars(outcome))
                self._store.write(self._path(job, "json"), b"", summary=report)
            except StoreError as error:
                self._world.say(f"trying again: {error}")
                self._world.sleep(_LOOK)
            else:
                how = outcome.said or outcome.why
                self._world.say(f"{job.name} has ended on host {self._number} ({how})")
                return

    def _announced(self) -> Job | None:
        """Return the job whose last try is to run on this host now."""
        found = _told(Announced, self._store.look(layout.on_all_hosts(self._tpu)))
        job = self._queue.read(found.job) if found else None
        if found is None or job is None or job.state != RUNNING or job.stop:
            return None
        if len(job.tries) != found.number or self._has_ended(job):
            return None
        return job if self._is_alive(job) else None

    def _is_alive(self, job: Job) -> bool:
        """Return whether it is worker 0 of this TPU that runs it, not one that is gone with it."""
        lease = self._store.look(layout.lease(self._tpu))
        holder = lease.summary.get("id") if lease and lease.age <= DURATION else None
        return holder == job.tries[-1].runner

    def _has_ended(self, job: Job) -> bool:
        report = _told(Outcome, self._store.look(self._path(job, "json")))
        return report is not None and report.why != _RUNS

    def _path(self, job: Job, kind: str) -> str:
        return f"{layout.hosts(job.name, job.tries[-1].number)}{self._number}.{kind}"
