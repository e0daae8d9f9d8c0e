"""`tpustack ci drift`: finds what was changed by hand. Never writes."""

from __future__ import annotations

from collections.abc import Sequence

from tpustack.ci.job import Job, side_by_side
from tpustack.ci.outcome import Outcome
from tpustack.ci.result import Result, failed

_REPAIR = (
    "Put it back with `tpustack ci deploy --refresh --stack {}`, or change the stack file to what "
    "is there now."
)


def drift(job: Job, stacks: Sequence[str]) -> list[Result]:
    """Compare the state of stacks with the cloud, side by side."""
    known = job.backend.stacks()
    return side_by_side(stacks, lambda stack: _drift(job, stack, stack in known))


def _drift(job: Job, stack: str, known: bool) -> Result:
    if not known:
        return Result(stack, Outcome.NO_CHANGE, notes=("It was never deployed.",))
    done = job.backend.stack(stack).drift(job.line(stack))
    if done.failure:
        return failed(stack, done.failure)
    changes = done.events.changes
    if not changes:
        return Result(stack, Outcome.NO_CHANGE)
    return Result(stack, Outcome.DRIFT, changes, notes=(_REPAIR.format(stack),))
