"""Measure where a training's time goes: computation, input, checkpoints, between loops."""

import logging
import time
from collections.abc import Callable

from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.summaries import Summaries

PARTS = ("compute", "input", "checkpoint", "idle")
TAG = "seconds_per_step"

logger = logging.getLogger(__name__)


class StepTimes(Callback):
    """Splits the time since the last loop into parts, for TensorBoard and a final log line.

    Loading TensorFlow and the first loop, which compiles the step, count as the separate parts
    `load` and `start`.
    """

    def __init__(
        self,
        summaries: Summaries,
        loading: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to `summaries`; `loading` seconds are over, and tests replace `clock`."""
        self._summaries = summaries
        self._clock = clock
        self._last = clock()
        self.seconds = {"load": loading} | dict.fromkeys(("start", *PARTS), 0.0)

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
        self._summaries.scalars(
            step, {f"{TAG}/{part}": seconds / report.count for part, seconds in parts.items()}
        )

    def close(self) -> None:
        """Log the sums."""
        whole = sum(self.seconds.values())
        if whole:
            shares = [f"{p} {s:.1f} s ({s / whole:.0%})" for p, s in self.seconds.items()]
            logger.info("time: %s", ", ".join(shares))
