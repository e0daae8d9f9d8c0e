"""Show progress: a bar on a terminal or in a notebook, else a parseable line per loop."""

import logging
import sys
from typing import TextIO

from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.notebook import NotebookBar, in_notebook
from tpu_training.monitoring.terminal import ProgressBar

logger = logging.getLogger(__name__)


class Progress(Callback):
    """Measures and shows the rate of steps.

    The first loop compiles the step and fills caches, so the rate excludes it once there is a
    second one.
    """

    def __init__(self, global_batch_size: int, stream: TextIO | None = None) -> None:
        """Count steps of `global_batch_size` examples; show them on `stream` (default: stdout)."""
        stream = stream or sys.stdout
        self._bar = _bar(stream)
        self._global_batch_size = global_batch_size
        self._loops = 0
        self._steps = 0
        self._seconds = 0.0

    @property
    def steps_per_second(self) -> float:
        """Steps per second within loops, without checkpoints; 0 before the first loop."""
        return self._steps / self._seconds if self._seconds else 0.0

    @property
    def examples_per_second(self) -> float:
        """Examples per second over all replicas."""
        return self.steps_per_second * self._global_batch_size

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Show step, loss, rate and remaining time."""
        if self._loops == 1:
            self._steps, self._seconds = 0, 0.0
        self._loops += 1
        self._steps += report.count
        self._seconds += report.seconds
        left = (report.last_step - step) / self.steps_per_second
        if self._bar:
            self._bar.show(
                step / report.last_step,
                f"step {step}/{report.last_step}  loss {report.loss:.4f}  "
                f"{self.examples_per_second:,.0f} examples/s  ETA {left:.0f} s",
            )
            return
        logger.info(
            "progress step=%d/%d loss=%.4f examples_per_second=%.0f eta=%.0fs",
            step,
            report.last_step,
            report.loss,
            self.examples_per_second,
            left,
        )

    def close(self) -> None:
        """Keep the bar's last state."""
        if self._bar:
            self._bar.close()


def _bar(stream: TextIO) -> ProgressBar | NotebookBar | None:
    if stream.isatty():
        return ProgressBar(stream)
    return NotebookBar() if in_notebook() else None
