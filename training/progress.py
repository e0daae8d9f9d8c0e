"""The progress line, one a loop, for people and for programs that follow the log."""

import logging

logger = logging.getLogger(__name__)


class Progress:
    """Rates of this process's steps.

    The first loop compiles the step and fills caches, so it is left out of the rate as soon as
    there is a second one.
    """

    def __init__(self, last_step: int, global_batch_size: int) -> None:
        """Count steps of `global_batch_size` examples up to `last_step`."""
        self._last_step = last_step
        self._global_batch_size = global_batch_size
        self._loops = 0
        self._steps = 0
        self._seconds = 0.0

    @property
    def steps_per_second(self) -> float:
        """Steps per second in the loops themselves, without checkpoints; 0 before the first."""
        return self._steps / self._seconds if self._seconds else 0.0

    @property
    def examples_per_second(self) -> float:
        """Examples per second over all replicas."""
        return self.steps_per_second * self._global_batch_size

    def report(self, step: int, count: int, loss: float, seconds: float) -> None:
        """Log that the `count` steps up to `step` took `seconds` and ended with mean `loss`."""
        if self._loops == 1:
            self._steps, self._seconds = 0, 0.0
        self._loops += 1
        self._steps += count
        self._seconds += seconds
        logger.info(
            "progress step=%d/%d loss=%.4f examples_per_second=%.0f eta=%.0fs",
            step,
            self._last_step,
            loss,
            self.examples_per_second,
            (self._last_step - step) / self.steps_per_second,
        )
