"""Keep loops short enough to hear a notice in time."""

# A preempted VM has 30 seconds from the notice to its end, in which a checkpoint must be written.
# https://cloud.google.com/compute/docs/instances/preemptible#preemption-process
# The host's work is done during the next loop, so that short loops cost nothing.
LOOP_SECONDS = 1.0
# The first loops of a start, before anything is measured: the very first compiles the step.
FIRST_STEPS = 10
_LONG_FIRST_SECONDS = 30.0


class Pace:
    """How many steps a loop may have, from the seconds that a step of the last one took."""

    def __init__(self) -> None:
        """Start without a measurement."""
        self._loops = 0
        self._most = FIRST_STEPS

    @property
    def most(self) -> int:
        """The steps that take LOOP_SECONDS, at least one."""
        return self._most

    def add(self, steps: int, seconds: float) -> None:
        """Learn from a loop of `steps` that took `seconds`."""
        self._loops += 1
        if self._loops == 1:
            # It was either compiled for long, or its steps are slow: the next one tells.
            self._most = 1 if seconds > _LONG_FIRST_SECONDS else FIRST_STEPS
            return
        self._most = max(1, int(LOOP_SECONDS * steps / max(seconds, 1e-6)))
