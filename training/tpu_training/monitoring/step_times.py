"""Where the time of a training goes: input, computing, checkpoints, and between the loops."""

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
    """Splits the time since the last loop into its parts, for TensorBoard and for a last line.

    The first loop compiles the step; its time is a part of its own, `start`.
    """

    def __init__(
        self, writer: tf.summary.SummaryWriter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Write to `writer`; `clock` is there for tests in virtual time."""
        self._writer = writer
        self._clock = clock
        self._last = clock()
        self.seconds = dict.fromkeys(("start", *PARTS), 0.0)

    def start(self, step: int) -> None:
        """Count from here on."""
        self._last = self._clock()

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Add the loop's parts."""
        now = self._clock()
        whole, self._last = now - self._last, now
        if not self.seconds["start"]:
            self.seconds["start"] = whole
            return
        # Two clocks: the worker's may say a little more than this machine saw.
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
