"""How much accuracy a converted model loses, judged on the examples that both models saw."""

import math
from dataclasses import dataclass

# One-sided, 95 %.
_Z = 1.6449


@dataclass(frozen=True)
class Agreement:
    """Counts of examples: all, those that each model recognised, and where they differ.

    Attributes:
        lost: The original recognised them, the converted model did not.
        gained: The other way round.
    """

    examples: int
    original_right: int
    lost: int
    gained: int

    @property
    def original_accuracy(self) -> float:
        """The share that the original model recognised."""
        return self.original_right / self.examples

    @property
    def converted_accuracy(self) -> float:
        """The share that the converted model recognised."""
        return (self.original_right - self.lost + self.gained) / self.examples

    @property
    def lost_points(self) -> float:
        """The loss of accuracy in percentage points."""
        return 100.0 * (self.lost - self.gained) / self.examples

    @property
    def bounds(self) -> tuple[float, float]:
        """The points that are lost at least and at most, each with 95 % confidence.

        Agresti and Min's interval for matched pairs, which adds half an example to each count:
        doi.org/10.1002/sim.1781. One example of 60 must not weigh as much as 100 of 6,000.
        """
        count, lost, gained = self.examples + 2, self.lost + 0.5, self.gained + 0.5
        mean = (lost - gained) / count
        reach = _Z * math.sqrt((lost + gained) / count - mean**2) / math.sqrt(count)
        return 100.0 * (mean - reach), 100.0 * (mean + reach)

    def __str__(self) -> str:
        """Say it in a sentence."""
        low, high = self.bounds
        return (
            f"int8 loses {self.lost} and gains {self.gained} of {self.examples} test examples: "
            f"{self.lost_points:.2f} points of accuracy (from {self.original_accuracy:.4f} to "
            f"{self.converted_accuracy:.4f}), with 95 % confidence at least {low:.2f} and at most "
            f"{high:.2f}"
        )
