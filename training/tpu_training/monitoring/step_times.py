"""Measure where a training's time goes: computation, input, checkpoints, between loops."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tpu_training.goodput.ledger import Beginning
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.summaries import Summaries

PARTS = ("compute", "input", "checkpoint", "idle")
TAG = "seconds_per_step"

logger = logging.getLogger(__name__)


class StepTimes(Callback):
    """Splits the time since the last loop into parts, for TensorBoard and a final log line.

    What came before the first loop, that loop, which compiles the step, and evaluations count as
    separate parts.
    """

    def __init__(
        self,
        summaries: Summaries,
        beginning: Beginning,
    ) -> None:
        """Write to `summaries` what comes after `beginning`, by the same clock."""
        self._summaries = summaries
        self._clock = beginning.clock
        self._last, self._evaluated = self._clock(), 0.0
        self.seconds = beginning.seconds | dict.fromkeys(("start", *PARTS, "evaluate"), 0.0)

    def start(self, step: int) -> None:
        """Start measuring."""
        self._last = self._clock()

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Add the loop's parts."""
        now = self._clock()
        whole, self._last = now - self._last - self._evaluated, now
        self._evaluated = 0.0
        if not self.seconds["start"]:
            self.seconds["start"] = whole
            return
        # The worker's clock may show slightly more than this machine's.
        waited = min(report.input_seconds, report.seconds)
        parts = {
            "compute": report.seconds - waited,
            "input": waited,
            "checkpoint": report.checkpoint_seconds,
            "idle": max(0.0, whole - report.seconds - report.checkpoint_seconds),
        }
        for part, seconds in parts.items():
            self.seconds[part] += seconds
        self._summaries.scalars(
            step, {f"{TAG}/{part}": seconds / report.count for part, seconds in parts.items()}
        )

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the time within as an evaluation."""
        begun = self._clock()
        try:
            yield
        finally:
            took = self._clock() - begun
            self.seconds["evaluate"] += took
            self._evaluated += took

    def close(self) -> None:
        """Log the sums."""
        whole = sum(self.seconds.values())
        if whole:
            shares = [f"{p} {s:.1f} s ({s / whole:.0%})" for p, s in self.seconds.items() if s]
            logger.info("time: %s", ", ".join(shares))
