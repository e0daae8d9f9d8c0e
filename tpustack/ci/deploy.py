"""`tpustack ci deploy`: deploys exactly what was reviewed, one stack after the other."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tpustack.ci import plan
from tpustack.ci.checks import checked
from tpustack.ci.job import Job, explained
from tpustack.ci.outcome import Outcome
from tpustack.ci.preview import plan_of, result_of
from tpustack.ci.result import Result, failed
from tpustack.errors import TpustackError
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


class _Deploy:
    def __init__(self, job: Job, stack: str, how: Deployment) -> None:
        self.job, self.stack, self.how = job, stack, how
        self.line = job.line(stack)
        self.engine = job.backend.stack(stack)
        self.repair = Repair(self.engine.recovery(self.line))

    def run(self, known: bool) -> Result:
        reviewed = self._reviewed()
        checked(self.job.root, self.stack, self.job.catalog, self.job.backend.environment)
        if not known:
            self.job.backend.create(self.stack)
            self.job.backend.tag(self.stack, **(self.how.tags or {}))
        self.repair.take_up()
        if self.how.refresh:
            done = self.repair.when_unlocked(lambda: self.engine.reread(self.line))
            if done.failure:
                return failed(self.stack, done.failure, *self.repair.notes)
        with tempfile.TemporaryDirectory() as folder:
            result = self._update(reviewed, plan_of(Path(folder), self.stack))
        return result.noting(*self.repair.notes)

    def _update(self, reviewed: plan.Plan | None, fresh: Path) -> Result:
        """Make a fresh plan, and deploy it if it does nothing that was not reviewed."""
        planned = self.engine.preview(fresh, self.line, refresh=False)
        result = result_of(self.stack, planned)
        if result.outcome is not Outcome.CHANGES:
            return result
        if reviewed is not None and (more := plan.surplus(plan.load(fresh), reviewed)):
            return failed(self.stack, _does_not_fit(self.stack, more))
        self.job.report(f"{self.stack}: updating")
        done = self.repair.when_unlocked(lambda: self.engine.deploy(fresh, self.line))
        return result_of(self.stack, done)

    def _reviewed(self) -> plan.Plan | None:
        """Return the plan to keep to; empty if nothing was planned for this stack."""
        if self.how.plans is None:
            return None
        path = plan_of(self.how.plans, self.stack)
        if not path.exists():
            self.repair.notes.append(
                f"`{path.name}` is not among the reviewed plans, so nothing may change."
            )
            return {}
        try:
            return plan.load(path)
        except (OSError, ValueError, KeyError) as error:
            raise TpustackError(f"{path} is no plan of the engine: {error!r}") from None


def _does_not_fit(stack: str, more: Sequence[str]) -> str:
    lines = "\n".join(f"  - {line}" for line in more)
    return (
        f"the reviewed plan of stack {stack} no longer fits: since the review, something else was "
        f"deployed or changed. Now this would be done, too:\n{lines}\nNothing was changed. Preview "
        "again, have the new plan reviewed, and deploy that."
    )
