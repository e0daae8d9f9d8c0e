"""`tpustack ci drift`: finds what was changed by hand. Never writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from infra.settings.problems import SettingsError
from infra.settings.stack_file import load_stack_file, stack_path
from tpustack.ci import settings
from tpustack.ci.job import Job, side_by_side
from tpustack.ci.outcome import Outcome
from tpustack.ci.result import Result, failed
from tpustack.engine.events import Change, Events
from tpustack.errors import UsageError

_REPAIR = (
    "Put it back with `{} --refresh --stack {}`, or change the stack file to what is there now."
)
_UNSEEN = (
    "Not looked at: IAM roles that somebody granted by hand, and labels added to a TPU or a bucket."
)
_BY_HAND = (
    "No deployment starts them or takes added labels away. "
    "`gcloud compute instances start NAME --zone=ZONE` starts a VM, "
    "`gcloud compute tpus tpu-vm start NAME --zone=ZONE` a TPU that is STOPPED."
)


def drift(job: Job, stacks: Sequence[str]) -> list[Result]:
    """Compare the state of stacks with the cloud, side by side."""
    known = job.backend.stacks()
    return side_by_side(stacks, lambda stack: _drift(job, stack, stack in known))


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


def _drift(job: Job, stack: str, known: bool) -> Result:
    if not known:
        return Result(stack, Outcome.NO_CHANGE, notes=("It was never deployed.",))
    done = job.backend.stack(stack).drift(job.line(stack))
    if done.failure:
        return failed(stack, done.failure)
    noticed = left_alone(job.root, stack, done.events)
    changes = tuple(_together(done.events.changes, noticed))
    if not changes:
        return Result(stack, Outcome.NO_CHANGE, notes=(_UNSEEN,))
    repair = (_repair(job.root, stack),) if done.events.changes else ()
    return Result(stack, Outcome.DRIFT, changes, notes=(*repair, *notes_on(noticed), _UNSEEN))


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
