"""When to save: every so many steps, or as often as costs and failures suggest.

Young's first-order optimum is √(2 · cost of a save · mean time between failures): J. W. Young, "A
first order approximation to the optimum checkpoint interval", CACM 17(9), 1974,
https://doi.org/10.1145/361147.361115.
"""

import logging
import math
import time
from collections.abc import Callable

from tpu_training.checkpoints.reader import History

# An assumption, before a job has seen failures of its own: about the rhythm that SkyPilot reports
# for spot TPUs (42 recoveries in a month).
TYPICAL_SECONDS_BETWEEN_FAILURES = 16 * 3600.0
# Before the cost of a save is measured, and at least.
FIRST_SECONDS = 60.0
LEAST_SECONDS = 10.0

logger = logging.getLogger(__name__)


class CheckpointSchedule:
    """Says after which loops a checkpoint is due."""

    def __init__(
        self, steps: int, history: History, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Save every `steps` steps or, where that is 0, by Young's formula from `history`."""
        self._steps = steps
        self._history = history
        self._clock = clock
        self._before = history.seconds
        self._begun = self._last = clock()
        self._cost: float | None = None

    @property
    def seconds(self) -> float:
        """The seconds between two checkpoints."""
        if self._cost is None:
            return FIRST_SECONDS
        between_failures = (TYPICAL_SECONDS_BETWEEN_FAILURES + self._history.seconds) / max(
            1, self._history.starts
        )
        return max(LEAST_SECONDS, math.sqrt(2 * self._cost * between_failures))

    def is_due(self, step: int, evaluates: bool = False) -> bool:
        """Return whether to save at `step`, after which the job perhaps `evaluates` for long."""
        if self._steps:
            return step % self._steps == 0
        return evaluates or self._clock() - self._last >= self.seconds

    def begin(self) -> None:
        """Note the time that the job has run until now; call it before saving."""
        self._history.seconds = self._before + self._clock() - self._begun

    def saved(self, cost: float) -> None:
        """Learn that a save has kept the training waiting for `cost` seconds."""
        first, self._last = self._cost is None, self._clock()
        self._cost = cost
        if first and not self._steps:
            logger.info(
                "checkpoint: one every %.0f s, as a save takes %.2f s and this is start %d in "
                "%.1f hours (--checkpoint_interval=0; a number is steps)",
                self.seconds,
                cost,
                self._history.starts,
                self._history.seconds / 3600,
            )
