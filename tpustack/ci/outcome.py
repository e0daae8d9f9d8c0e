"""The outcomes of a run: a word and an exit code each."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum


class Outcome(Enum):
    """The outcome of one stack; from good to bad."""

    exit_code: int

    # 2 is left out: it is the exit code of a wrong command line.
    NO_CHANGE = "no change", 0
    CHANGES = "changes", 3
    DRIFT = "drift", 4
    POLICY = "policy violation", 5
    FAILURE = "failure", 1

    def __new__(cls, word: str, exit_code: int) -> Outcome:
        """Let the word be the value."""
        made = object.__new__(cls)
        made._value_, made.exit_code = word, exit_code
        return made


_ORDER = list(Outcome)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the outcome of a run over several stacks; one over none changes nothing."""
    return max(outcomes, key=_ORDER.index, default=Outcome.NO_CHANGE)
