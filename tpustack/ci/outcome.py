"""How a run ends, as a word and as an exit code."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Outcome(Enum):
    """How one stack fared; from good to bad."""

    NO_CHANGE = "no change"
    CHANGES = "changes"
    DRIFT = "drift"
    POLICY = "policy violation"
    FAILURE = "failure"

    @property
    def exit_code(self) -> int:
        """What the process ends with. 2 is left out: that is a wrong command line."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Outcome.NO_CHANGE: 0,
    Outcome.FAILURE: 1,
    Outcome.CHANGES: 3,
    Outcome.DRIFT: 4,
    Outcome.POLICY: 5,
}
_ORDER = list(Outcome)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """How a run over several stacks ended; one over none changes nothing."""
    return max(outcomes, key=_ORDER.index, default=Outcome.NO_CHANGE)
