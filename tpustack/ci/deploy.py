"""`tpustack ci deploy`: deploys exactly what was reviewed, one stack after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpustack.ci import reviewed
from tpustack.ci.checks import checked
from tpustack.ci.drift import left_alone, notes_on
from tpustack.ci.forges import has_ended
from tpustack.ci.job import Job, explained
from tpustack.ci.outcome import Outcome
from tpustack.ci.preview import result_of
from tpustack.ci.result import Result, failed
from tpustack.ci.sealed import Sealed
from tpustack.ci.touched import head
from tpustack.cloud.google import require_project
from tpustack.engine.backend import Backend
from tpustack.engine.stack import NOTHING
from tpustack.recovery.repair import Repair

_GOES_ON = (Outcome.NO_CHANGE, Outcome.CHANGES)


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


def deploy(job: Job, stacks: Sequence[str], how: Deployment) -> Iterator[Result]:
    """Deploy one stack after the other; after one that failed, none of the rest."""
    known = job.backend.stacks()
    stopped = ""
    for stack in stacks:
        if stopped:
            yield failed(stack, f"not deployed: stack {stopped} comes before it, and failed")
            continue
        result = explained(stack, lambda: _Deploy(job, stack, how).run(stack in known))  # noqa: B023
        stopped = "" if result.outcome in _GOES_ON else stack
        yield result


def ready(backend: Backend, stack: str, tags: Mapping[str, str], *, known: bool) -> None:
    """Make a stack unless it is known, and note its tags, of which a killed run noted some."""
    if not known:
        backend.create(stack)
    if tags and not tags.keys() <= backend.tags(stack).keys():
        backend.tag(stack, **tags)


class _Deploy:
    def __init__(self, job: Job, stack: str, how: Deployment) -> None:
        self.job, self.stack, self.how = job, stack, how
        self.line = job.line(stack)
        self.engine = job.backend.stack(stack)
        self.repair = Repair(self.engine.recovery(self.line, has_ended))
        self.reviewed = how.plans and reviewed.taken(how.plans, stack)
        self.resumed = False

    def run(self, known: bool) -> Result:
        settings = checked(
            self.job.root, self.stack, self.job.catalog, self.job.backend.environment
        )
        require_project(settings.project)
        if self.reviewed and (problem := self._unbound(self.reviewed, known)):
            return failed(self.stack, reviewed.does_not_fit(self.stack, problem))
        ready(self.job.backend, self.stack, self.how.tags or {}, known=known)
        self.repair.take_up()
        if self.how.refresh:
            done = self.repair.when_unlocked(lambda: self.engine.reread(self.line))
            if done.failure:
                return failed(self.stack, done.failure, *self.repair.notes)
            self.repair.notes += notes_on(left_alone(self.job.root, self.stack, done.events))
        with tempfile.TemporaryDirectory() as folder:
            result = self._update(reviewed.plan_of(Path(folder), self.stack))
        return result.noting(*self.repair.notes)

    def _update(self, path: Path) -> Result:
        """Make a fresh plan, and deploy it if it does nothing that was not reviewed."""
        planned = self.engine.preview(path, self.line, refresh=False)
        result = result_of(self.stack, planned)
        if result.outcome is not Outcome.CHANGES:
            return result
        if self.how.plans:
            fresh = reviewed.seal(self.job, path, self.stack, planned)
            if more := reviewed.surplus(
                self.job, self.engine, fresh, self.reviewed or None, resumed=self.resumed
            ):
                return failed(
                    self.stack, reviewed.goes_beyond(self.stack, more), *self._unplanned()
                )
            if self.reviewed and not self.resumed:
                # A run that is killed may be taken up with this plan, although it moves the state.
                self.job.backend.tag(self.stack, **{reviewed.TAG: self.reviewed.digest})
        self.job.report(f"{self.stack}: updating")
        done = self.repair.when_unlocked(lambda: self.engine.deploy(path, self.line))
        return result_of(self.stack, done)

    def _unbound(self, plan: Sealed, known: bool) -> str:
        state = self.engine.state() if known else NOTHING
        noted = self.job.backend.tags(self.stack).get(reviewed.TAG) if known else None
        self.resumed = state != plan.seal.state
        return reviewed.unbound(plan, self.stack, head(self.job.root), state, noted)

    def _unplanned(self) -> list[str]:
        if self.reviewed:
            return []
        name = reviewed.plan_of(Path(), self.stack)
        return [f"`{name}` is not among the reviewed plans, so nothing may change."]
