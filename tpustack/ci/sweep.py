"""`tpustack ci sweep` and `destroy`: remove stacks that nobody needs any more."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from tpustack.ci import orphans, requests
from tpustack.ci.job import Job, explained
from tpustack.ci.outcome import Outcome
from tpustack.ci.preview import result_of
from tpustack.ci.result import Result, failed
from tpustack.cloud.google import Google
from tpustack.recovery.repair import Repair


def sweep(job: Job, branches: set[str], now: datetime) -> list[Result]:
    """Remove the stacks of requests whose branch is gone or whose time is up."""
    results = []
    for stack in sorted(filter(requests.NAME.fullmatch, job.backend.stacks())):
        why = requests.reason_to_sweep(job.backend.tags(stack), branches, now)
        if why:
            results.append(explained(stack, lambda: _gone(job, stack)).noting(why))  # noqa: B023
    return results


def sweep_orphans(job: Job, google: Google, project: str, *, remove: bool) -> list[Result]:
    """Name, or remove, resources of requests' stacks that the backend no longer has."""
    found = orphans.find(google, project)
    known = job.backend.stacks()
    results = []
    for stack in sorted({each.stack for each in found} - known.keys()):
        own = [each for each in found if each.stack == stack]
        names = ", ".join(each.name for each in own)
        if not remove:
            note = f"No state knows of: {names}. `--remove-orphans` deletes that."
            results.append(Result(stack, Outcome.NO_CHANGE, notes=(note,)))
        elif left := orphans.remove(google, own):
            results.append(failed(stack, "\n".join(left)))
        else:
            note = f"Deleted, since no state knew of it: {names}."
            results.append(Result(stack, Outcome.CHANGES, notes=(note,)))
    return results


def destroy(job: Job, stack: str) -> Result:
    """Delete a stack's resources except protected ones; remove the stack if none is left."""
    if stack not in job.backend.stacks():
        return failed(stack, f"the backend has no stack {stack}")
    return explained(stack, lambda: _gone(job, stack))


def _gone(job: Job, stack: str) -> Result:
    on_engine, line = job.backend.stack(stack), job.line(stack)
    repair = Repair(on_engine.recovery(line))
    repair.take_up()
    done = repair.when_unlocked(lambda: on_engine.clear(line))
    result = result_of(stack, done).noting(*repair.notes)
    if done.failure:
        return result
    if left := on_engine.resources():
        names = ", ".join(f"`{each['urn'].rpartition('::')[2]}`" for each in left)
        return result.noting(f"Left standing because it is protected: {names}.")
    job.backend.remove(stack)
    return replace(result, outcome=Outcome.CHANGES)
