"""`tpustack ci drift`: finds what was changed by hand. Never writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from infra.settings.base import SettingsError
from infra.settings.parse import load_stack_file, stack_path
from tpustack.ci import grants, settings
from tpustack.ci.job import Job, side_by_side
from tpustack.ci.outcome import Outcome
from tpustack.ci.result import Result, failed
from tpustack.cloud.google import Google
from tpustack.engine.events import Change, Events
from tpustack.errors import TpustackError, UsageError

_REPAIR = (
    "Put it back with `{} --refresh --stack {}`, or change the stack file to what is there now."
)
_UNSEEN = (
    "Not looked at: grants on accounts, keys and secrets, and labels added to a TPU or a bucket."
)
_BY_HAND_GRANTED = (
    "No deployment takes a grant away that the stack does not have: find out who made it, and "
    "remove it from the bucket's policy."
)
_BY_HAND = (
    "No deployment starts them or takes added labels away. "
    "`gcloud compute instances start NAME --zone=ZONE` starts a VM, "
    "`gcloud compute tpus tpu-vm start NAME --zone=ZONE` a TPU that is STOPPED."
)


def drift(job: Job, stacks: Sequence[str], google: Callable[[], Google] = Google) -> list[Result]:
    """Compare the state of stacks with the cloud, side by side."""
    known = job.backend.stacks()
    return side_by_side(stacks, lambda stack: _drift(job, stack, google, known=stack in known))


def left_alone(root: Path, stack: str, events: Events) -> tuple[Change, ...]:
    """Return what a refresh saw that no deployment undoes, without what the stack's limits did."""
    try:
        idle = load_stack_file(stack_path(root, stack)).limits.idle_minutes
    except SettingsError:
        idle = None
    stopped = ("state: STOPPED",)
    return tuple(each for each in events.noticed if idle is None or each.properties != stopped)


def notes_on(noticed: Sequence[Change]) -> tuple[str, ...]:
    """Return what a reader should know of that; nothing if there is nothing."""
    if not noticed:
        return ()
    seen = "; ".join(f"{each.name} ({', '.join(each.properties)})" for each in noticed)
    return (f"Changed by hand, and left so: {seen}. {_BY_HAND}",)


def _drift(job: Job, stack: str, google: Callable[[], Google], *, known: bool) -> Result:
    if not known:
        return Result(stack, Outcome.NO_CHANGE, notes=("It was never deployed.",))
    engine = job.backend.stack(stack)
    done = engine.drift(job.line(stack))
    if done.failure:
        return failed(stack, done.failure)
    granted, notes = _granted(job.root, stack, google, engine.resources())
    noticed = left_alone(job.root, stack, done.events)
    changes = (*_together(done.events.changes, noticed), *granted)
    if not changes:
        return Result(stack, Outcome.NO_CHANGE, notes=(*notes, _UNSEEN))
    repair = (_repair(job.root, stack),) if done.events.changes else ()
    return Result(
        stack, Outcome.DRIFT, changes, notes=(*repair, *notes_on(noticed), *notes, _UNSEEN)
    )


def _granted(
    root: Path, stack: str, google: Callable[[], Google], resources: Sequence[Mapping[str, Any]]
) -> tuple[list[Change], list[str]]:
    """Return the buckets with grants that the state lacks, and what to tell of grants."""
    try:
        project = load_stack_file(stack_path(root, stack)).project
        apis = google()
        found = list(grants.on_buckets(apis, project, resources))
        others = grants.on_project(apis, project, resources)
    except (SettingsError, TpustackError) as error:
        return [], [f"Grants could not be compared with the state: {error}"]
    notes = [_BY_HAND_GRANTED] if found else []
    if others:
        notes.append(f"Granted on project {project}, and not in the stack's state: {others}")
    return found, notes


def _repair(root: Path, stack: str) -> str:
    """Return the way back: only what the pipeline lists can be deployed by `tpustack ci`."""
    try:
        listed = stack in settings.load(root).stacks
    except UsageError:
        listed = False
    return _REPAIR.format("tpustack ci deploy" if listed else "pulumi up", stack)


def _together(changes: Sequence[Change], noticed: Sequence[Change]) -> Iterator[Change]:
    """Yield each resource once, with all that differs."""
    beside = {(each.type, each.name): each for each in noticed}
    for change in changes:
        more = beside.pop((change.type, change.name), None)
        seen = [one for one in more.properties if one != "labels"] if more else []
        yield replace(change, properties=(*change.properties, *seen))
    yield from beside.values()
