"""Run a job on another host of a slice than worker 0.

The job's record is worker 0's: this host runs the same program while that says that a try runs, and
ends when it does. What it writes goes into the log of this process (Vertex AI's, or the machine's
journal), and its artifacts into a folder of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.startup.agent.jobs.store import Store
from infra.startup.agent.jobs.transport import StoreError

from .attempt import Attempt
from .queue import Queue
from .record import RUNNING, Job, Outcome

_LOOK = 2.0


class Follower:
    """Follows a job, try by try, until it is over.

    Args:
        store: the bucket.
        folder: where tries lie on this host.
        world: the host.
        worker: its number.
        content_of: returns what this host runs of a job's last try.
        tell: is told how a try has ended here, while its folder is still there.
        beat: is told every two seconds that a try runs here.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        world: World,
        worker: str,
        content_of: Callable[[Job], Mapping[str, Any]],
        tell: Callable[[Job, Attempt, Outcome], None] = lambda job, attempt, outcome: None,
        beat: Callable[[Job], None] = lambda job: None,
    ) -> None:
        self._folder, self._world, self._worker = folder, world, worker
        self._content_of, self._report, self._beat = content_of, tell, beat
        self._queue = Queue(store, world.say)
        self._taken = False

    def take_away(self) -> None:
        """Know that the container ends."""
        self._taken = True

    def run(self, name: str) -> int:
        """Run the tries of the job of that name; return the container's exit code."""
        ran = 0
        while not self._taken and (job := self._read(name)) is not None and not job.is_over:
            if job.state == RUNNING and len(job.tries) > ran:
                ran = len(job.tries)
                self.run_try(job)
            else:
                self._world.sleep(_LOOK)
        ended = self._read(name)
        return ended.code if ended is not None and ended.code is not None else 1

    def _read(self, name: str) -> Job | None:
        while not self._taken:
            try:
                return self._queue.read(name)
            except StoreError as error:
                self._world.say(f"trying again: {error}")
                self._world.sleep(_LOOK)
        return None

    def run_try(self, job: Job) -> None:
        """Run a job's last try, or go on with it, until it has ended here."""
        attempt = Attempt(self._folder / f"{job.name}-{job.tries[-1].number}")
        attempt.prepare({**self._content_of(job), "artifacts": f"host-{self._worker}/"})
        told = 0
        if attempt.was_started:
            told = attempt.log.stat().st_size
        else:
            self._world.start(attempt)
        while (outcome := self._outcome(attempt)) is None:
            self._beat(job)
            told = self._tell(attempt, told)
            there = self._read(job.name)
            if self._taken or there is None or not _goes_on(there, job):
                attempt.end("stopped")
            self._world.sleep(_LOOK)
        attempt.kill()
        self._tell(attempt, told)
        self._report(job, attempt, outcome)
        attempt.remove()

    def _outcome(self, attempt: Attempt) -> Outcome | None:
        if (ended := attempt.ended()) is not None or attempt.is_running():
            return ended
        # It may have ended between the two looks.
        return attempt.ended() or Outcome("preempted", None, "its machine was restarted")

    def _tell(self, attempt: Attempt, told: int) -> int:
        """Bring what the try wrote since into this log; return how much that is by now."""
        with attempt.log.open("rb") as file:
            file.seek(told)
            new = file.read()
        if new:
            self._world.say(new.decode(errors="replace").rstrip("\n"))
        return told + len(new)


def _goes_on(there: Job, job: Job) -> bool:
    """Return whether the try that `job` began is the one that runs."""
    return there.state == RUNNING and not there.stop and len(there.tries) == len(job.tries)


@dataclass(frozen=True)
class World:
    """What a container or a host gives, which tests replace.

    Attributes:
        environment: of this process.
        start: starts a try's supervisor.
        sleep: lets time pass.
        time: seconds since the epoch.
        say: writes a line to Vertex AI's log or the machine's journal.
    """

    environment: Mapping[str, str]
    start: Callable[[Attempt], None]
    sleep: Callable[[float], None]
    time: Callable[[], float]
    say: Callable[[str], None]
