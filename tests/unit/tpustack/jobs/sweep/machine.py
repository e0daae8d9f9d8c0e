"""A machine that runs the trials of a sweep in no time."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field

from tpu_agent.jobs import queue
from tpu_agent.jobs.queue import Outcome, Queue
from tpu_core import paths

STEPS = 5


@dataclass
class Machine:
    """Runs what is queued, one step of one job at each turn; `ran` has the commands."""

    queue: Queue
    ran: list[str] = field(default_factory=list)
    current: str = ""
    step: int = 0

    def turn(self, _: float = 0.0) -> None:
        if not self.current:
            waiting = queue.waiting(self.queue.summaries())
            if not waiting:
                return
            self.current, self.step = waiting[0], 0
            job = self.queue.change(
                self.current, lambda job: job.started("1", "m", "t", time.time())
            )
            assert job is not None
            self.ran.append(job.spec.command)
        self._go_on()

    def _go_on(self) -> None:
        job = self.queue.read(self.current)
        assert job is not None
        self.step += 1
        line = f"step={self.step} loss={loss(job.spec.command) / self.step}"
        piece = paths.piece(job.name, 1, self.step * 1000)
        self.queue.store.write(piece, f"{line}\n".encode())
        outcome = Outcome("stopped") if job.stop else Outcome("exited", 0)
        if job.stop or self.step == STEPS:
            self.queue.change(job.name, lambda there: there.after_try(outcome, time.time()))
            self.current = ""


def loss(command: str) -> float:
    """How far the rate of a command is from 0.01, in orders of magnitude."""
    found = re.search(r"--rate=(\S+)", command)
    assert found is not None
    return abs(math.log10(float(found[1])) + 2)
