"""Two programs measured in turn, so that both meet the same moods of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Compared:
    """What turns of two programs give.

    Attributes:
        ratio: the median of the first program's figure divided by the second's, pair by pair.
        first: the median of the first program's figures.
        second: the median of the second program's figures.
    """

    ratio: float
    first: float
    second: float


def in_turn(first: Callable[[], float], second: Callable[[], float], rounds: int) -> Compared:
    """Measure both programs `rounds` times, one after the other."""
    return compare([(first(), second()) for _ in range(rounds)])


def compare(pairs: list[tuple[float, float]]) -> Compared:
    """Return the ratio and the medians of pairs that were measured together."""
    firsts, seconds = zip(*pairs, strict=True)
    ratio = statistics.median(one / other for one, other in pairs)
    return Compared(ratio, statistics.median(firsts), statistics.median(seconds))
