"""Retry with growing pauses until a deadline."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FIRST_PAUSE = 0.5


@dataclass(frozen=True)
class Attempt:
    """One try: its number, counted from 1, and the seconds elapsed before it."""

    number: int
    elapsed: float
    deadline: float

    def __str__(self) -> str:
        """Format as `try 3, 2 of 400 s`."""
        return f"try {self.number}, {self.elapsed:.0f} of {self.deadline:.0f} s"


@dataclass(frozen=True)
class Wait:
    """How long to wait: `tries` times `interval` seconds in all; AI Platform advises 40 x 10 s.

    Pauses start short and double up to `interval`, so that a worker that is ready soon is noticed
    soon. Tests replace `clock` and `sleep` to run in virtual time.
    """

    tries: int = 40
    interval: float = 10.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    @property
    def deadline(self) -> float:
        """The seconds to wait in all."""
        return self.tries * self.interval

    def attempts(self) -> Iterator[Attempt]:
        """Yield attempts until the deadline, with pauses between them."""
        started, pause, number = self.clock(), min(_FIRST_PAUSE, self.interval), 1
        while True:
            elapsed = self.clock() - started
            yield Attempt(number, elapsed, self.deadline)
            left = self.deadline - (self.clock() - started)
            if left <= 0:
                return
            self.sleep(min(pause, left))
            pause, number = min(pause * 2, self.interval), number + 1
