"""What a start does before its first loop. Loads no TensorFlow."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tpu_training.goodput.entry import BEFORE


class Beginning:
    """Measures the parts of a start before its first loop, in seconds."""

    def __init__(
        self, begun: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Begin at `begun` by `clock`, or now; what is over already went into loading."""
        self.clock = clock
        self.begun = clock() if begun is None else begun
        self.seconds = dict.fromkeys(BEFORE, 0.0)
        self.seconds["load"] = clock() - self.begun

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time within to one of BEFORE, without that of other parts within it."""
        begun, before = self.clock(), sum(self.seconds.values())
        try:
            yield
        finally:
            within = sum(self.seconds.values()) - before
            self.seconds[part] += self.clock() - begun - within
