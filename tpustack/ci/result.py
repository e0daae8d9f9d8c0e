"""The result of a run for one stack, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tpustack.ci.outcome import Outcome, worst
from tpustack.engine.stack import Change, Violation


@dataclass(frozen=True)
class CostChange:
    """US dollars an hour before and after, as texts; None: unknown, or no such stack."""

    before: str | None
    after: str | None
    difference: str | None


@dataclass(frozen=True)
class Result:
    """The result of a run for one stack.

    Attributes:
        stack: its name.
        outcome: how it ended.
        changes: what was or will be done; for drift, what somebody else did.
        violations: what the policies say; None if they were not asked.
        cost: what changes about the cost; None if nobody asked.
        problem: why it failed.
        notes: what a reader should know beside that.
        unfinished: what was to be done and failed.
        seconds: how long it took.
    """

    stack: str
    outcome: Outcome
    changes: tuple[Change, ...] = ()
    violations: tuple[Violation, ...] | None = None
    cost: CostChange | None = None
    problem: str = ""
    notes: tuple[str, ...] = ()
    unfinished: tuple[Change, ...] = ()
    seconds: float = 0.0

    @property
    def replaced(self) -> tuple[Change, ...]:
        """Return the resources that are deleted and made again."""
        return tuple(change for change in self.changes if change.operation == "replace")

    def noting(self, *notes: str) -> Result:
        """Return the same result with more notes in front."""
        return replace(self, notes=(*notes, *self.notes))

    def as_json(self) -> dict[str, Any]:
        """Return it for programs."""
        return {
            "stack": self.stack,
            "outcome": self.outcome.value,
            "changes": [vars(change) for change in self.changes],
            "violations": self.violations and [vars(violation) for violation in self.violations],
            "cost": self.cost and vars(self.cost),
            "problem": self.problem,
            "notes": list(self.notes),
            "unfinished": [vars(change) for change in self.unfinished],
            "seconds": round(self.seconds, 2),
        }


def failed(stack: str, problem: str, *notes: str) -> Result:
    """Return the result of a stack that nothing could be done about."""
    return Result(stack, Outcome.FAILURE, problem=problem, notes=notes)


def document(command: str, results: Sequence[Result], seconds: float) -> dict[str, Any]:
    """Return what a run writes to result.json."""
    outcome = worst(result.outcome for result in results)
    return {
        "command": command,
        "outcome": outcome.value,
        "exitCode": outcome.exit_code,
        "stacks": [result.as_json() for result in results],
        "seconds": round(seconds, 2),
    }
