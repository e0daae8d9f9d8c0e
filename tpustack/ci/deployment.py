"""`tpustack ci preview` and `deploy`: shows what a change would do, and does what was reviewed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from infra.catalog import Catalog
from infra.cost import Total, dollars, of_stack
from infra.settings import StackSettings
from infra.settings.base import SettingsError
from infra.settings.parse import load_yaml, parse, stack_path
from tpustack.ci import plan
from tpustack.ci.drift import left_alone, notes_on
from tpustack.ci.forge import has_ended
from tpustack.ci.pipeline import file_at, head_commit
from tpustack.ci.plan import Sealed
from tpustack.ci.result import (
    CostChange,
    Outcome,
    Result,
    Run,
    checked_settings,
    explained,
    failed,
    in_parallel,
)
from tpustack.cloud.google import require_project
from tpustack.engine.backend import Backend
from tpustack.engine.stack import NOTHING, Done
from tpustack.recovery.repair import Repair

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


def preview(run: Run, stacks: Sequence[str], how: Preview) -> list[Result]:
    """Preview stacks side by side and keep their plans."""
    known = run.backend.stacks()
    return in_parallel(stacks, lambda stack: _preview(run, stack, stack in known, how))


def _preview(run: Run, stack: str, known: bool, how: Preview) -> Result:
    settings = checked_settings(run.root, stack, run.catalog, run.backend.environment)
    require_project(settings.project)
    plan.plan_path(run.output, stack).unlink(missing_ok=True)
    file, before = stack_path(run.root, stack), None
    if known and how.base is None:
        before = file.read_text(encoding="utf-8")
    elif known and how.base:
        before = file_at(run.root, how.base, f"stacks/{file.name}")
    cost = cost_change(stack, before, settings, run.catalog)
    notes = [how.note] if how.note else []
    if known:
        return _run(run, run.backend, stack, how, cost).noting(*notes)
    # The previewer's account can't write to the backend, so a new stack is previewed in a folder.
    with tempfile.TemporaryDirectory() as folder:
        elsewhere = run.backend.elsewhere(Path(folder))
        elsewhere.create(stack)
        new = replace(how, refresh=False)
        return _run(run, elsewhere, stack, new, cost).noting(_NEW, *notes)


def _run(run: Run, backend: Backend, stack: str, how: Preview, cost: CostChange | None) -> Result:
    engine, path = backend.stack(stack), plan.plan_path(run.output, stack)
    done = engine.preview(path, run.line(stack), refresh=how.refresh)
    result = result_of(stack, done, cost)
    if result.outcome not in (Outcome.CHANGES, Outcome.NO_CHANGE):
        return result
    fresh = plan.seal_preview(run, path, stack, done)
    if how.reviewed and result.outcome is Outcome.CHANGES:
        then = plan.reviewed_plan(how.reviewed, stack)
        if more := plan.unreviewed_steps(run, engine, fresh, then):
            path.unlink()
            problem = plan.goes_beyond(stack, more)
            return replace(result, outcome=Outcome.FAILURE, problem=problem)
    return result


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


def cost_change(
    stack: str, before: str | None, after: StackSettings, catalog: Catalog
) -> CostChange:
    """Return the hourly cost with the stack file as it was (its text, if any) and as it is."""
    now = of_stack(after, stack, catalog).configured
    settings = _settings(stack, before)
    if settings is None:
        return CostChange(None, _shown(now), f"+{_shown(now)}")
    then = of_stack(settings, stack, catalog).configured
    complete = now.complete and then.complete
    change = now.hour - then.hour
    sign = "-" if change < 0 else "+"
    difference = f"{sign}{dollars(abs(change), 4)}" if change else dollars(change, 4)
    return CostChange(_shown(then), _shown(now), difference if complete else None)


def _settings(stack: str, text: str | None) -> StackSettings | None:
    try:
        document = load_yaml(text) if text else None
        config = document.get("config") if isinstance(document, dict) else None
        return parse(config, stack) if isinstance(config, dict) else None
    except (yaml.YAMLError, SettingsError):
        return None


def _shown(total: Total) -> str:
    amount = dollars(total.hour, 4)
    return amount if total.complete else f"over {amount}"


_SUCCEEDED = (Outcome.NO_CHANGE, Outcome.CHANGES)


@dataclass(frozen=True)
class Deployment:
    """How to deploy.

    Attributes:
        plans: the folder of the reviewed plans; None: what a preview says now is deployed.
        refresh: take what the cloud has into the state first, so that drift is repaired.
        tags: noted with a stack that is made.
    """

    plans: Path | None = None
    refresh: bool = False
    tags: dict[str, str] | None = None


def deploy(run: Run, stacks: Sequence[str], how: Deployment) -> Iterator[Result]:
    """Deploy one stack after the other; after one that failed, none of the rest."""
    known = run.backend.stacks()
    stopped = ""
    for stack in stacks:
        if stopped:
            yield failed(stack, f"not deployed: stack {stopped} comes before it, and failed")
            continue
        result = explained(stack, lambda: _Deploy(run, stack, how).deploy(stack in known))  # noqa: B023
        stopped = "" if result.outcome in _SUCCEEDED else stack
        yield result


def ready(backend: Backend, stack: str, tags: Mapping[str, str], *, known: bool) -> None:
    """Make a stack unless it is known, and note its tags, of which a killed run noted some."""
    if not known:
        backend.create(stack)
    if tags and not tags.keys() <= backend.tags(stack).keys():
        backend.tag(stack, **tags)


class _Deploy:
    def __init__(self, run: Run, stack: str, how: Deployment) -> None:
        self.run, self.stack, self.how = run, stack, how
        self.line = run.line(stack)
        self.engine = run.backend.stack(stack)
        self.repair = Repair(self.engine.recovery(self.line, has_ended))
        self.reviewed = how.plans and plan.reviewed_plan(how.plans, stack)
        self.resumed = False

    def deploy(self, known: bool) -> Result:
        settings = checked_settings(
            self.run.root, self.stack, self.run.catalog, self.run.backend.environment
        )
        require_project(settings.project)
        if self.reviewed and (problem := self._mismatch(self.reviewed, known)):
            return failed(self.stack, plan.does_not_fit(self.stack, problem))
        ready(self.run.backend, self.stack, self.how.tags or {}, known=known)
        self.repair.take_up()
        if self.how.refresh:
            done = self.repair.when_unlocked(lambda: self.engine.reread(self.line))
            if done.failure:
                return failed(self.stack, done.failure, *self.repair.notes)
            self.repair.notes += notes_on(left_alone(self.run.root, self.stack, done.events))
        with tempfile.TemporaryDirectory() as folder:
            result = self._update(plan.plan_path(Path(folder), self.stack))
        return result.noting(*self.repair.notes)

    def _update(self, path: Path) -> Result:
        """Make a fresh plan, and deploy it if it does nothing that was not reviewed."""
        planned = self.engine.preview(path, self.line, refresh=False)
        result = result_of(self.stack, planned)
        if result.outcome is not Outcome.CHANGES:
            return result
        if self.how.plans:
            fresh = plan.seal_preview(self.run, path, self.stack, planned)
            if more := plan.unreviewed_steps(
                self.run, self.engine, fresh, self.reviewed or None, resumed=self.resumed
            ):
                return failed(self.stack, plan.goes_beyond(self.stack, more), *self._unplanned())
            if self.reviewed and not self.resumed:
                # A killed run may be continued with this plan, although it moves the state.
                self.run.backend.tag(self.stack, **{plan.PLAN_TAG: self.reviewed.digest})
        self.run.report(f"{self.stack}: updating")
        done = self.repair.when_unlocked(lambda: self.engine.deploy(path, self.line))
        return result_of(self.stack, done)

    def _mismatch(self, reviewed: Sealed, known: bool) -> str:
        state = self.engine.state() if known else NOTHING
        noted = self.run.backend.tags(self.stack).get(plan.PLAN_TAG) if known else None
        self.resumed = state != reviewed.seal.state
        return plan.mismatch(reviewed, self.stack, head_commit(self.run.root), state, noted)

    def _unplanned(self) -> list[str]:
        if self.reviewed:
            return []
        name = plan.plan_path(Path(), self.stack)
        return [f"`{name}` is not among the reviewed plans, so nothing may change."]
