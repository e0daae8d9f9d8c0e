"""`tpustack ci preview`: shows what a change would do to the stacks that it touches."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from infra.settings.parse import stack_path
from tpustack.ci import reviewed, touched
from tpustack.ci.checks import checked
from tpustack.ci.cost import cost_change
from tpustack.ci.job import Job, side_by_side
from tpustack.ci.outcome import Outcome
from tpustack.ci.result import CostChange, Result
from tpustack.cloud.access import require_project
from tpustack.engine.backend import Backend
from tpustack.engine.stack import Done

_NEW = "The stack is new: the backend has none of this name, so everything is to be made."


@dataclass(frozen=True)
class Preview:
    """How to preview.

    Attributes:
        base: what git calls the state before the change; the cost is compared with it.
        refresh: look at what the cloud has, not only at what the state says.
        reviewed: the folder of plans that were reviewed; nothing beyond them may be planned.
        note: what a reader should know of every stack.
    """

    base: str | None = None
    refresh: bool = False
    reviewed: Path | None = None
    note: str = ""


def preview(job: Job, stacks: Sequence[str], how: Preview) -> list[Result]:
    """Preview stacks side by side and keep their plans."""
    known = job.backend.stacks()
    return side_by_side(stacks, lambda stack: _preview(job, stack, stack in known, how))


def _preview(job: Job, stack: str, known: bool, how: Preview) -> Result:
    settings = checked(job.root, stack, job.catalog, job.backend.environment)
    require_project(settings.project)
    reviewed.plan_of(job.output, stack).unlink(missing_ok=True)
    before = _before(job, stack, how.base) if known else None
    cost = cost_change(stack, before, settings, job.catalog)
    notes = [how.note] if how.note else []
    if known:
        return _run(job, job.backend, stack, how, cost).noting(*notes)
    # The previewer's account can't write to the backend, so a new stack is previewed in a folder.
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = job.backend.elsewhere(Path(folder))
        elsewhere.create(stack)
        new = replace(how, refresh=False)
        return _run(job, elsewhere, stack, new, cost).noting(_NEW, *notes)


def _run(job: Job, backend: Backend, stack: str, how: Preview, cost: CostChange | None) -> Result:
    engine, path = backend.stack(stack), reviewed.plan_of(job.output, stack)
    done = engine.preview(path, job.line(stack), refresh=how.refresh)
    result = result_of(stack, done, cost)
    if result.outcome not in (Outcome.CHANGES, Outcome.NO_CHANGE):
        return result
    fresh = reviewed.seal(job, path, stack, done)
    if how.reviewed and result.outcome is Outcome.CHANGES:
        then = reviewed.taken(how.reviewed, stack)
        if more := reviewed.surplus(job, engine, fresh, then):
            path.unlink()
            problem = reviewed.goes_beyond(stack, more)
            return replace(result, outcome=Outcome.FAILURE, problem=problem)
    return result


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
    failed = done.events.failed
    return Result(stack, outcome, changes, violations, cost, problem, unfinished=failed)
