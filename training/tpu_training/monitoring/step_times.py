"""Measure where a training's time goes: computation, input, checkpoints, between loops."""

import logging
import time
from collections.abc import Callable

import tensorflow as tf

from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.summaries import write_scalars

PARTS = ("compute", "input", "checkpoint", "idle")
TAG = "seconds_per_step"

logger = logging.getLogger(__name__)


class StepTimes(Callback):
    """Splits the time since the last loop into parts, for TensorBoard and a final log line.

    The first loop, which compiles the step, counts as the separate part `start`.
    """

    def __init__(
        self, writer: tf.summary.SummaryWriter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Write to `writer`; tests replace `clock` to run in virtual time."""
        self._writer = writer
        self._clock = clock
        self._last = clock()
        self.seconds = dict.fromkeys(("start", *PARTS), 0.0)

    def start(self, step: int) -> None:
        """Start measuring."""
        self._last = self._clock()

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Add the loop's parts."""
        now = self._clock()
        whole, self._last = now - self._last, now
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
        write_scalars(
            self._writer,
            step,
            {f"{TAG}/{part}": seconds / report.count for part, seconds in parts.items()},
        )

    def close(self) -> None:
        """Log the sums."""
        whole = sum(self.seconds.values())
        if whole:
            shares = [f"{p} {s:.1f} s ({s / whole:.0%})" for p, s in self.seconds.items()]
            logger.info("time: %s", ", ".join(shares))
