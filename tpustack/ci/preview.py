"""`tpustack ci preview`: shows what a change would do to the stacks that it touches."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from infra.settings.stack_file import stack_path
from tpustack.ci import touched
from tpustack.ci.checks import checked
from tpustack.ci.cost import cost_change
from tpustack.ci.job import Job, side_by_side
from tpustack.ci.outcome import Outcome
from tpustack.ci.result import CostChange, Result
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Done

_NEW = "The stack is new: the backend has none of this name, so everything is to be made."


def plan_of(folder: Path, stack: str) -> Path:
    """Return the path of a stack's plan."""
    return folder / f"{stack}.plan.json"


def preview(job: Job, stacks: Sequence[str], base: str | None, *, refresh: bool) -> list[Result]:
    """Preview stacks side by side and keep their plans.

    Args:
        job: what is run, and where to.
        stacks: the stacks.
        base: what git calls the state before the change; the cost is compared with it.
        refresh: look at what the cloud has, not only at what the state says.
    """
    known = job.backend.stacks()
    return side_by_side(stacks, lambda stack: _preview(job, stack, stack in known, base, refresh))


def _preview(job: Job, stack: str, known: bool, base: str | None, refresh: bool) -> Result:
    settings = checked(job.root, stack, job.catalog, job.backend.environment)
    plan_of(job.output, stack).unlink(missing_ok=True)
    if known:
        cost = cost_change(stack, _before(job, stack, base), settings, job.catalog)
        return result_of(stack, _run(job, job.backend, stack, refresh), cost)
    # The previewer's account can't write to the backend, so a new stack is previewed in a folder.
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = job.backend.elsewhere(Path(folder))
        elsewhere.create(stack)
        cost = cost_change(stack, None, settings, job.catalog)
        return result_of(stack, _run(job, elsewhere, stack, False), cost).noting(_NEW)


def _run(job: Job, backend: Backend, stack: str, refresh: bool) -> Done:
    plan = plan_of(job.output, stack)
    return backend.stack(stack).preview(plan, job.line(stack), refresh=refresh)


def _before(job: Job, stack: str, base: str | None) -> str | None:
    file = f"stacks/Pulumi.{stack}.yaml"
    if base is None:
        return stack_path(job.root, stack).read_text(encoding="utf-8")
    return touched.file_at(job.root, base, file)


def result_of(stack: str, done: Done, cost: CostChange | None = None) -> Result:
    """Turn the engine's report on a preview or an update into the stack's result."""
    violations = tuple(done.events.violations)
    changes = done.events.changes
    if any(violation.mandatory for violation in violations):
        outcome = Outcome.POLICY
    elif done.failure:
        outcome = Outcome.FAILURE
    else:
        outcome = Outcome.CHANGES if changes else Outcome.NO_CHANGE
    # When a rule refuses, the engine itself says only that the preview failed.
    problem = "\n".join(done.events.errors) if outcome is Outcome.POLICY else done.failure
    return Result(stack, outcome, changes, violations, cost, problem)
