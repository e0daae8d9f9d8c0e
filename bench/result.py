"""One measured figure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Attributes:
        name: what was measured.
        value: the figure, in `unit`.
        unit: such as `ratio`, `1/s`, `ms`, `MiB`.
        goal: what it must reach; None where it is only told.
        better: which way is better.
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    better: Literal["lower", "higher"] = "lower"

    @property
    def sign(self) -> str:
        """The goal's comparison sign."""
        return "≤" if self.better == "lower" else "≥"

    @property
    def holds(self) -> bool:
        """Whether the goal is reached."""
        if self.goal is None:
            return True
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal
