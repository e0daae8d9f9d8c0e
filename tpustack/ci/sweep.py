"""`tpustack ci sweep` and `destroy`: remove stacks that nobody needs any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from tpustack.ci import managed, orphans, requests, unlabelled
from tpustack.ci.forges import has_ended
from tpustack.ci.job import Job, explained
from tpustack.ci.orphans import Orphan
from tpustack.ci.outcome import Outcome
from tpustack.ci.preview import result_of
from tpustack.ci.result import Result, failed
from tpustack.cloud.google import Google
from tpustack.errors import TpustackError
from tpustack.recovery.repair import Repair

# A mistake in what the sweeper is told must not cost everything at once.
MOST_STACKS, MOST_ORPHANS = 10, 60
# Google's lists may lag behind what a run does; a run itself is known by its stack.
SETTLED = timedelta(hours=2)
_BUCKET = "gcp:storage/bucket:Bucket"


def sweep(job: Job, branches: set[str], now: datetime) -> list[Result]:
    """Remove the stacks of requests whose branch is gone or whose time is up."""
    results: list[Result] = []
    for stack in sorted(filter(requests.NAME.fullmatch, job.backend.stacks())):
        try:
            tags = job.backend.tags(stack)
            why = requests.reason_to_sweep(tags, branches, now)
        except TpustackError as error:
            results.append(failed(stack, str(error)))
            continue
        if why and len(results) < MOST_STACKS:
            go = _gone if requests.are_whole(tags) else _empty
            results.append(explained(stack, lambda: go(job, stack)).noting(why))  # noqa: B023
        elif why:
            note = f"Left for the next sweep: one removes at most {MOST_STACKS} stacks."
            results.append(Result(stack, Outcome.NO_CHANGE, notes=(why, note)))
    return results


def sweep_orphans(
    job: Job,
    google: Google,
    project: str,
    now: datetime,
    before: Collection[str],
    *,
    remove: bool,
) -> list[Result]:
    """Name, or remove, resources of requests' stacks that the backend no longer has.

    Args:
        job: the run.
        google: the cloud.
        project: where requests' stacks are.
        now: the time.
        before: the stacks that the backend had when the run began.
        remove: whether to remove anything.
    """
    found = [*orphans.find(google, project), *unlabelled.find(google, project)]
    known = job.backend.stacks()
    found = [each for each in found if each.stack not in known]
    found = [*managed.find(google, project, found), *found]
    results, room = [], MOST_ORPHANS
    for stack in sorted({each.stack for each in found}):
        own = [each for each in found if each.stack == stack]
        why = _why_kept(own, before, now, room) if remove else "`--remove-orphans` deletes that."
        if why:
            names = ", ".join(each.name for each in own)
            note = f"No state knows of: {names}. {why}"
            results.append(Result(stack, Outcome.NO_CHANGE, notes=(note,)))
        else:
            room -= len(own)
            results.append(_removed(stack, own, orphans.remove(google, own)))
    return results


def _why_kept(own: list[Orphan], before: Collection[str], now: datetime, room: int) -> str:
    """Return why nothing of a stack is deleted although no state knows of it; empty if it is."""
    if not any(map(requests.NAME.fullmatch, before)):
        return (
            "It stays: the backend has no stack of any request, so it may be empty by mistake. "
            "Delete it by hand if it is not."
        )
    if max(each.made for each in own) > now - SETTLED:
        return "It stays until all of it is two hours old, since a run may still be at work on it."
    if len(own) > room:
        return f"Left for the next sweep: one deletes at most {MOST_ORPHANS} such resources."
    return ""


def _removed(stack: str, own: list[Orphan], left: dict[Orphan, str]) -> Result:
    """Return what a removal did; it failed if not even a part of it went."""
    if len(left) == len(own):
        return failed(stack, "\n".join(left.values()))
    gone = ", ".join(each.name for each in own if each not in left)
    notes = [f"Removed, since no state knew of it: {gone}."]
    if left:
        notes.append(f"Left for the next sweep: {'; '.join(left.values())}")
    return Result(stack, Outcome.CHANGES, notes=tuple(notes))


def destroy(job: Job, stack: str, *, delete_data: bool) -> Result:
    """Delete a stack's resources except protected ones; remove the stack if none is left."""
    if stack not in job.backend.stacks():
        return failed(stack, f"the backend has no stack {stack}")
    lost = [] if delete_data else _buckets_with_data(job.backend.stack(stack).resources())
    if lost:
        return failed(
            stack,
            f"{', '.join(lost)}: with forceDestroy and without protection, all objects would go, "
            "too. Nothing was deleted. Deploy bucket.protect: true or bucket.forceDestroy: false "
            "first, or say --delete-data",
        )
    return explained(stack, lambda: _gone(job, stack))


def _buckets_with_data(resources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the buckets that a destruction deletes along with their objects."""
    return [
        f"bucket {(each.get('outputs') or {}).get('name', each['urn'])}"
        for each in resources
        if each["type"] == _BUCKET
        and not each.get("protect")
        and not each.get("retainOnDelete")
        and (each.get("outputs") or {}).get("forceDestroy")
    ]


def _empty(job: Job, stack: str) -> Result:
    """Remove a stack of which no run has noted anything yet, so that it has no resources.

    The engine refuses one that has: by then a run that is at work may have made them.
    """
    recovery = job.backend.stack(stack).recovery(job.line(stack), has_ended)
    repair = Repair(recovery)
    repair.take_up()
    repair.when_unlocked(recovery.ask_for_lock)
    job.backend.remove(stack)
    return Result(stack, Outcome.CHANGES, notes=tuple(repair.notes))


def _gone(job: Job, stack: str) -> Result:
    on_engine, line = job.backend.stack(stack), job.line(stack)
    repair = Repair(on_engine.recovery(line, has_ended))
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
