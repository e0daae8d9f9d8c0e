"""Where thirty days of wall time go."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from bench.month.cloud import Cloud, Life
from bench.month.strategies import Strategy
from bench.month.trace import Tpu
from tpu_training.checkpoints.reader import JobHistory
from tpu_training.loop.train import CheckpointSchedule

MONTH_SECONDS = 30 * 86400.0
# From READY to the first step: the trainer asks each 10 s, loads TensorFlow, restores, compiles.
START_SECONDS = 35.0
# A save keeps the steps waiting for so long.
SAVE_SECONDS = 0.5


@dataclass
class Month:
    """Seconds by what they went into; they add up to the month."""

    step: float = 0.0
    checkpoint: float = 0.0
    lost_steps: float = 0.0
    starting: float = 0.0
    recovering: float = 0.0
    provisioning: float = 0.0
    preemptions: int = 0

    @property
    def availability(self) -> float:
        """The part of the month in which the TPU was READY."""
        away = self.recovering + self.provisioning
        return 1 - away / MONTH_SECONDS

    @property
    def goodput(self) -> float:
        """The part of the month that went into steps that count."""
        return self.step / MONTH_SECONDS

    @property
    def whole(self) -> float:
        """All of it."""
        return (
            self.step
            + self.checkpoint
            + self.lost_steps
            + self.starting
            + self.recovering
            + self.provisioning
        )


def simulate(strategy: Strategy, trace: Iterator[Tpu]) -> Month:
    """Run a month from the moment at which the first TPU is READY."""
    cloud = Cloud(trace)
    cloud.create()
    first = cloud.lives[0]
    cloud.lives[0] = Life(-first.ready, 0.0, first.preempted - first.ready)
    look = strategy.start(cloud)
    looks = 0
    while cloud.now < MONTH_SECONDS:
        look()
        # Nothing changes before the TPU's end: the looks until then see what this one saw.
        nothing = cloud.lives[-1].preempted - cloud.now if cloud.state() == "READY" else 0.0
        looks += max(1, math.ceil(min(nothing, MONTH_SECONDS) / strategy.poll))
        cloud.now = looks * strategy.poll
    return _account(cloud.lives, strategy)


def _account(lives: list[Life], strategy: Strategy) -> Month:
    month, history, since = Month(), JobHistory(), 0.0
    for life in lives:
        asked, ready = max(0.0, life.asked), min(life.ready, MONTH_SECONDS)
        month.recovering += asked - since
        month.provisioning += ready - asked
        since = min(life.preempted, MONTH_SECONDS)
        _train(month, ready, since, strategy.checkpoints, history)
        month.preemptions += life.preempted < MONTH_SECONDS
        history.starts += 1
    month.recovering += MONTH_SECONDS - since
    return month


def _train(
    month: Month, begin: float, end: float, interval: float | None, history: JobHistory
) -> None:
    """Train on a TPU that is READY from `begin` to `end`, when it goes without notice."""
    now = min(begin + START_SECONDS, end)
    month.starting += now - begin
    schedule = CheckpointSchedule(0, history, lambda: now)
    while now < end:
        pause = interval or schedule.seconds
        if now + pause + SAVE_SECONDS > end:
            # What the month's end cuts off is not lost.
            kind = "step" if end == MONTH_SECONDS else "lost_steps"
            setattr(month, kind, getattr(month, kind) + end - now)
            return
        now += pause
        month.step += pause
        schedule.begin()
        now += SAVE_SECONDS
        month.checkpoint += SAVE_SECONDS
        schedule.saved(SAVE_SECONDS)
