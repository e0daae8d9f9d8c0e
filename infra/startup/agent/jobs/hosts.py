"""Have all hosts of a slice run the same try, where the framework needs a process on each.

Worker 0 has the job, its lease, its record and its log. It writes into the bucket which try runs
on all hosts; the others follow that, and write how it has ended there. A try that fails on one of
them ends on all: libtpu and the frameworks would wait for that host.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import layout
from .attempt import Attempt
from .container import World
from .follower import Follower
from .lease import DURATION
from .queue import Queue
from .record import ON_EACH_HOST, RUNNING, Job, Outcome, Spec
from .store import Store, StoreError
from .variables import Tpu, content_of

_LOOK = 2.0
_REPORT = re.compile(r"(\d+)\.json")


def runs_on_all(tpu: Tpu, spec: Spec) -> bool:
    """Return whether a job runs on other hosts than worker 0, too."""
    return tpu.is_here and len(tpu.hosts) > 1 and spec.framework in ON_EACH_HOST


def announce(store: Store, tpu: str, job: Job) -> None:
    """Have the other hosts run a job's last try. Raises StoreError."""
    what = {"job": job.name, "try": job.tries[-1].number}
    store.write(layout.on_all_hosts(tpu), b"", summary=what)


def failure(store: Store, job: Job) -> Outcome | None:
    """Return how a job's last try failed on another host, if it did. Raises StoreError."""
    folder = layout.hosts(job.name, job.tries[-1].number)
    for item in store.items(folder):
        host = _REPORT.fullmatch(item.path.removeprefix(folder))
        outcome = _failed(host[1], item.summary) if host else None
        if outcome is not None:
            return outcome
    return None


def _failed(host: str, told: dict[str, Any]) -> Outcome | None:
    outcome = Outcome(str(told.get("why", "")), told.get("code"), str(told.get("said", "")))
    if outcome.why in ("", "stopped") or (outcome.why, outcome.code) == ("exited", 0):
        return None
    said = outcome.said or f"exit code {outcome.code}"
    return Outcome(outcome.why, outcome.code, f"host {host} of the TPU: {said}")


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
        Follower(
            self._store, self._folder, self._world, host, lambda _: content, self._tell
        ).run_try(job)

    def _tell(self, job: Job, attempt: Attempt, outcome: Outcome) -> None:
        """Write how a try has ended here, again and again until it is written."""
        while True:
            try:
                with attempt.log.open("rb") as file:
                    self._store.upload(self._path(job, "log"), file, attempt.log.stat().st_size)
                report = vars(outcome)
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
        found = self._store.look(layout.on_all_hosts(self._tpu))
        job = self._queue.read(str(found.summary.get("job"))) if found else None
        if found is None or job is None or job.state != RUNNING or job.stop:
            return None
        if len(job.tries) != found.summary.get("try") or self._has_ended(job):
            return None
        return job if self._is_alive(job) else None

    def _is_alive(self, job: Job) -> bool:
        """Return whether it is worker 0 of this TPU that runs it, not one that is gone with it."""
        lease = self._store.look(layout.lease(self._tpu))
        holder = lease.summary.get("id") if lease and lease.age <= DURATION else None
        return holder == job.tries[-1].runner

    def _has_ended(self, job: Job) -> bool:
        return self._store.look(self._path(job, "json")) is not None

    def _path(self, job: Job, kind: str) -> str:
        return f"{layout.hosts(job.name, job.tries[-1].number)}{self._number}.{kind}"
