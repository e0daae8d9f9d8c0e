"""`tpustack ci drift`: finds what was changed by hand. Never writes.

Three sources are compared with the state. A refresh by the engine finds what an update would put
right. The events of that refresh also name what no update undoes: machines that are stopped, labels
that were added. Grants that the stack did not make are read from Google's policies.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tpu_infra.settings import base, parse
from tpustack.ci.pipeline import load_pipeline
from tpustack.ci.result import Outcome, Result, Run, failed, in_parallel
from tpustack.cloud.google import Google
from tpustack.engine.stack import Change, Events
from tpustack.errors import TpustackError, UsageError

_REPAIR = "Revert it with `{} --refresh --stack {}`, or change the stack file to match."
_UNSEEN = (
    "Not checked: grants on accounts, keys and secrets, and labels added to a TPU or a bucket."
)
_BY_HAND_GRANTED = (
    "No deployment removes a grant that isn't in the stack. Find out who made it, and remove it "
    "from the bucket's policy."
)
_BY_HAND = (
    "No deployment starts them or removes added labels. "
    "`gcloud compute instances start NAME --zone=ZONE` starts a VM, "
    "`gcloud compute tpus tpu-vm start NAME --zone=ZONE` a TPU that is STOPPED."
)


def drift(run: Run, stacks: Sequence[str], google: Callable[[], Google] = Google) -> list[Result]:
    """Compare the state of stacks with the cloud, side by side."""
    known = run.backend.stacks()
    return in_parallel(stacks, lambda stack: _drift(run, stack, google, known=stack in known))


def left_alone(root: Path, stack: str, events: Events) -> tuple[Change, ...]:
    """Return what a refresh saw that no deployment undoes, without what the stack's limits did."""
    try:
        idle = parse.load_stack_file(parse.stack_path(root, stack)).limits.idle_minutes
    except base.SettingsError:
        idle = None
    # What the agent stopped for being idle is as the stack wants it.
    stopped = ("state: STOPPED",)
    return tuple(each for each in events.noticed if idle is None or each.properties != stopped)


def notes_on(noticed: Sequence[Change]) -> tuple[str, ...]:
    """Return what a reader should know of that; nothing if there is nothing."""
    if not noticed:
        return ()
    seen = "; ".join(f"{each.name} ({', '.join(each.properties)})" for each in noticed)
    return (f"Changed manually: {seen}. {_BY_HAND}",)


def _drift(run: Run, stack: str, google: Callable[[], Google], *, known: bool) -> Result:
    if not known:
        return Result(stack, Outcome.NO_CHANGE, notes=("The stack was never deployed.",))
    engine = run.backend.stack(stack)
    done = engine.drift(run.line(stack))
    if done.failure:
        return failed(stack, done.failure)
    granted, notes = _granted(run.root, stack, google, engine.resources())
    noticed = left_alone(run.root, stack, done.events)
    changes = (*_together(done.events.changes, noticed), *granted)
    if not changes:
        return Result(stack, Outcome.NO_CHANGE, notes=(*notes, _UNSEEN))
    repair = (_repair(run.root, stack),) if done.events.changes else ()
    return Result(
        stack, Outcome.DRIFT, changes, notes=(*repair, *notes_on(noticed), *notes, _UNSEEN)
    )


def _granted(
    root: Path, stack: str, google: Callable[[], Google], resources: Sequence[Mapping[str, Any]]
) -> tuple[list[Change], list[str]]:
    """Return the buckets with grants that the state lacks, and what to tell of grants.

    A caller who may not read policies still learns of all other drift.
    """
    try:
        project = parse.load_stack_file(parse.stack_path(root, stack)).project
        apis = google()
        found = list(grants_on_buckets(apis, project, resources))
        others = grants_on_project(apis, project, resources)
    except (base.SettingsError, TpustackError) as error:
        return [], [f"Grants couldn't be compared with the state: {error}"]
    notes = [_BY_HAND_GRANTED] if found else []
    if others:
        notes.append(f"Grants on project {project} that aren't in the stack's state: {others}")
    return found, notes


def _repair(root: Path, stack: str) -> str:
    """Return the way back: only what the pipeline lists can be deployed by `tpustack ci`."""
    try:
        listed = stack in load_pipeline(root).stacks
    except UsageError:
        listed = False
    return _REPAIR.format("tpustack ci deploy" if listed else "pulumi up", stack)


def _together(changes: Sequence[Change], noticed: Sequence[Change]) -> Iterator[Change]:
    """Yield each resource once, with all that differs.

    The same resource may have changed in ways that an update undoes and in ways that it does not.
    """
    others = {(each.type, each.name): each for each in noticed}
    for change in changes:
        more = others.pop((change.type, change.name), None)
        seen = [one for one in more.properties if one != "labels"] if more else []
        yield replace(change, properties=(*change.properties, *seen))
    yield from others.values()


# Grants that a stack's state does not have: made by hand, or by a hostile commit. A stack declares
# single grants, not whole policies, so the engine sees no others. Accounts of the stack's project
# may share its bucket, by another stack. A project's policy has many grants that are none of the
# stack's business, with people's addresses: only the roles that the stack grants there are looked
# at, which are those that its deployer can grant.

_PROJECT = "https://cloudresourcemanager.googleapis.com/v1/projects/{}:getIamPolicy"
_BUCKET = "https://storage.googleapis.com/storage/v1/b/{}/iam"
_OWN = "gcp:storage/bucket:Bucket"
_ON_PROJECT = "gcp:projects/iAMMember:IAMMember"
_ON_BUCKET = "gcp:storage/bucketIAMMember:BucketIAMMember"
# Members with a role in the project: each bucket begins with grants to them.
_OF_PROJECT = ("projectOwner:{}", "projectEditor:{}", "projectViewer:{}")
Json = Mapping[str, Any]
Grant = tuple[str, str]


def grants_on_buckets(google: Google, project: str, resources: Sequence[Json]) -> Iterator[Change]:
    """Yield each bucket of the stack's own with grants that its state lacks.

    Raises TpustackError where they may not be read.
    """
    for each in resources:
        name = (each.get("outputs") or {}).get("name")
        if each["type"] == _OWN and name:
            url = _BUCKET.format(quote(name, safe=""))
            # Below version 3 Google renames the roles of grants that have a condition.
            policy = google.get(url, {"optionsRequestedPolicyVersion": 3})
            more = _strangers(policy, project) - _known(resources, _ON_BUCKET, name)
            if grants := tuple(f"IAM: {role} to {member}" for role, member in sorted(more)):
                yield Change("update", _OWN, each["urn"].rpartition("::")[2], grants)


def grants_on_project(google: Google, project: str, resources: Sequence[Json]) -> str:
    """Return which grants on the project the state lacks. Raises TpustackError."""
    known = _known(resources, _ON_PROJECT, project)
    roles = {role for role, _ in known}
    asked = {"options": {"requestedPolicyVersion": 3}}
    more = _strangers(google.post(_PROJECT.format(project), asked), project) - known
    return "; ".join(f"{role} to {member}" for role, member in sorted(more) if role in roles)


def _strangers(policy: Json, project: str) -> set[Grant]:
    """Return the grants of a policy, without those to accounts and members of the project."""
    # The accounts of a project `example.com:name` are at name.example.com.
    account = f"@{'.'.join(reversed(project.split(':')))}.iam.gserviceaccount.com"
    own = (account, *(each.format(project) for each in _OF_PROJECT))
    return {
        (binding["role"], member)
        for binding in policy.get("bindings") or ()
        for member in binding.get("members") or ()
        if not member.endswith(own)
    }


def _known(resources: Iterable[Json], kind: str, name: str) -> set[Grant]:
    """Return the grants of the state on a bucket or project."""
    outputs = [each.get("outputs") or {} for each in resources if each["type"] == kind]
    return {
        (each["role"], each["member"])
        for each in outputs
        if name in (each.get("project"), str(each.get("bucket")).removeprefix("b/"))
    }
