"""What trainings at several learning rates reach. Loads no TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean

# How far a training gets also depends on the order of its batches: by a point, for the digits. Only
# what comes close to the best in the first one can be the best in the mean.
TIMES, _CLOSE = 3, 0.03


@dataclass(frozen=True)
class Tried:
    """A pair's test accuracies; means of some trainings, where they come close to the best.

    Attributes:
        name: the pair and its optimizer, as in the table.
        grid: by learning rate.
        suggestion: the rate that the range test suggests, if any.
        accuracy: what trainings there reach.
    """

    name: str
    grid: dict[float, float]
    suggestion: float | None
    accuracy: float = 0.0

    @property
    def lost(self) -> float | None:
        """The points lost to the best of the grid; None without a suggestion."""
        if self.suggestion is None:
            return None
        return max(0.0, 100 * (max(self.grid.values()) - self.accuracy))

    @property
    def row(self) -> str:
        """What docs/lr-range-test.md has in a row of its table."""
        best = max(self.grid, key=lambda rate: self.grid[rate])
        suggestion, lost = "none", ""
        if self.suggestion is not None:
            suggestion, lost = f"{self.suggestion:.2g}: {self.accuracy:.1%}", f"{self.lost:.1f}"
        return f"| {self.name} | {best:.2g}: {self.grid[best]:.1%} | {suggestion} | {lost} |"


def train_grid(rates: list[float], accuracy: Callable[[float], float]) -> dict[float, float]:
    """Train once at each of `rates`, and again where that came close to the best; return means."""
    found = {rate: [accuracy(rate)] for rate in rates}
    best = max(first for (first,) in found.values())
    for rate, accuracies in found.items():
        if accuracies[0] >= best - _CLOSE:
            accuracies += [accuracy(rate) for _ in range(TIMES - 1)]
    return {rate: mean(accuracies) for rate, accuracies in found.items()}
