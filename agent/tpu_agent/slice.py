"""The trainer on all hosts of a slice, which starts and ends on all of them together.

Worker 0's agent supervises its trainer as that of any machine (trainer.py). Before each start it
writes an object into the bucket, whose generation is the start's number, and deletes it at the end.
The others run that start, and write that it runs there and how it has ended. A trainer that
fails on one of them, or of which one tells nothing, ends on all: JAX waits for that host.
"""

import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpu_agent.jobs.attempt import brief
from tpu_agent.jobs.hosts import BEAT, STILL
from tpu_agent.jobs.queue import Outcome
from tpu_agent.trainer import GRACE, TrainerProcess
from tpu_core import paths, records
from tpu_core.bucket import Bucket

_LOOK, _RETRY = 2.0, 15.0


@dataclass(frozen=True)
class World:
    """What a follower needs besides its process and the bucket, which tests replace.

    Attributes:
        now: seconds since the epoch.
        say: writes a line to the journal and the serial port.
        environment: more for the trainer's environment. Raises OSError.
        arguments: more for its command line. Raises OSError.
    """

    now: Callable[[], float]
    say: Callable[[str], None]
    environment: Callable[[], Mapping[str, str]]
    arguments: Callable[[], Sequence[str]]


class Follower:
    """The trainer on another host of a slice than worker 0.

    Args:
        folder: of the process.
        store: the bucket.
        tpu: the slice.
        number: this host's.
        world: this host.
    """

    def __init__(self, folder: Path, store: Bucket, tpu: str, number: int, world: World) -> None:
        self._process, self._store, self._world = TrainerProcess(folder), store, world
        self._tpu, self._number = tpu, number
        self._current = self._process.last()
        self._reported = self._ending = 0
        self._kill_at, self._beaten = 0.0, -BEAT
        self._said = ""
        self.running = self._process.running()
        """Whether it ran at the last look."""

    def look(self) -> float:
        """Do one step; return after how many seconds to look again at the latest."""
        self.running = self._process.running()
        try:
            self._step()
        except OSError as error:
            if self._said != (text := f"retrying: {error}"):
                self._said = text
                self._world.say(text)
            return _RETRY
        return _LOOK

    def stop(self) -> None:
        """End the trainer, as the machine goes down: it may save first."""
        self._process.end()

    def _step(self) -> None:
        if self.running and self._ending == self._current:
            if time.monotonic() >= self._kill_at:
                self._process.send(signal.SIGKILL)
            return
        found = self._store.look(paths.trainer_on_all_hosts(self._tpu))
        wanted = found.generation if found else 0
        if self.running:
            if wanted == self._current:
                self._beat()
            else:
                self._end()
        elif self._current != self._reported and self._process.ended(self._current):
            self._report()
        elif wanted not in (0, self._current) and (order := self._process.order()):
            more, arguments = self._world.environment(), self._world.arguments()
            self.running = self._process.begin(wanted, order, more, arguments)
            self._current, self._beaten = wanted, -BEAT
            self._world.say(f"worker 0 starts the trainer on all hosts: this is {self._number}")

    def _end(self) -> None:
        self._world.say("worker 0's trainer has ended: this one is ended, too")
        self._ending, self._kill_at = self._current, time.monotonic() + GRACE
        self._process.send(signal.SIGTERM)

    def _beat(self) -> None:
        # The clock may be set.
        if abs(self._world.now() - self._beaten) >= BEAT:
            self._store.write(self._path(), b"", summary=STILL)
            self._beaten = self._world.now()

    def _report(self) -> None:
        """Write how the trainer has ended here, unless worker 0 had it end."""
        ended = self._process.ended(self._current)
        code, cause, text = self._process.outcome(ended.code if ended else -1)
        if self._ending != self._current:
            report = brief(Outcome(cause if code and cause else "exited", code, text))
            self._store.write(self._path(), b"", summary=records.stamped(vars(report)))
            self._world.say(f"the trainer ended with exit code {code}; worker 0 decides what next")
        self._reported = self._current

    def _path(self) -> str:
        return f"{paths.trainers(self._tpu, self._current)}{self._number}.json"
