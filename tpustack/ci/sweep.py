"""`tpustack ci sweep` and `destroy`: remove stacks that are no longer needed, and orphans.

An orphan is a resource of a request's stack that exists at Google and is in no state. It is
recognized by all labels that each resource of such a stack gets; one is its mark, which only a
stack of this name in this backend has. Accounts, networks and health checks can have no labels:
their descriptions have the mark (`tpu_infra.names.mark_of`). A custom job of Vertex AI belongs to
the stack whose account it runs as: its own labels are whatever a submitter wrote.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any
from urllib.parse import quote

from tpu_core.compute import COMPUTE
from tpu_core.google import vertex_root
from tpu_core.times import parse_time
from tpu_infra.catalog import vertex_regions
from tpu_infra.names import MADE_FOR, MARK, VERTEX, mark_of
from tpu_infra.resources.vertex import UNENDED, account_of
from tpustack.ci import deployment, forge, pipeline
from tpustack.ci.result import Outcome, Result, Run, explained, failed
from tpustack.cloud.google import Forbidden, Google, NotFound, says_disabled
from tpustack.errors import TpustackError

# Bounds what a mistake in the branches or the backend can cost.
MOST_STACKS, MOST_ORPHANS = 10, 60
# Google's lists may lag behind what a run does; a run itself is known by its stack.
SETTLED = timedelta(hours=2)
_STORAGE = "https://storage.googleapis.com/storage/v1"
_TPU = "https://tpu.googleapis.com/v2"
_IAM = "https://iam.googleapis.com/v1"
_MADE = re.compile(re.escape(MADE_FOR) + r"(?P<stack>\S+) \((?P<mark>[0-9a-f]+)\)")
# Google does not say when an account was made; the rest of its stack does.
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)
Json = Mapping[str, Any]


def sweep(run: Run, branches: set[str], now: datetime) -> list[Result]:
    """Remove the stacks of requests whose branch is gone or whose time is up.

    One that can't be removed stops no other; its failure is a result of its own.
    """
    results: list[Result] = []
    for stack in sorted(filter(pipeline.REQUEST.fullmatch, run.backend.stacks())):
        try:
            tags = run.backend.tags(stack)
            why = pipeline.reason_to_sweep(tags, branches, now)
        except TpustackError as error:
            results.append(failed(stack, str(error)))
            continue
        if why and len(results) < MOST_STACKS:
            remove = _remove_stack if pipeline.tags_are_complete(tags) else _remove_empty
            results.append(explained(stack, lambda: remove(run, stack)).noting(why))  # noqa: B023
        elif why:
            note = f"It waits for the next sweep, because one removes at most {MOST_STACKS} stacks."
            results.append(Result(stack, Outcome.NO_CHANGE, notes=(why, note)))
    return results


def destroy(run: Run, stack: str, *, delete_data: bool) -> Result:
    """Delete a stack's resources except protected ones; remove the stack if none is left."""
    if stack not in run.backend.stacks():
        return failed(stack, f"the backend has no stack {stack}")
    lost = [] if delete_data else _buckets_with_data(run.backend.stack(stack).resources())
    if lost:
        return failed(
            stack,
            f"{', '.join(lost)}: with forceDestroy and without protection, all objects would be "
            "deleted, too. Nothing was deleted. Deploy bucket.protect: true or "
            "bucket.forceDestroy: false first, or use --delete-data",
        )
    return explained(stack, lambda: _remove_stack(run, stack))


def _buckets_with_data(resources: Iterable[Json]) -> list[str]:
    """Return the buckets that a destruction deletes along with their objects."""
    return [
        f"bucket {(each.get('outputs') or {}).get('name', each['urn'])}"
        for each in resources
        if each["type"] == "gcp:storage/bucket:Bucket"
        and not each.get("protect")
        and not each.get("retainOnDelete")
        and (each.get("outputs") or {}).get("forceDestroy")
    ]


def _remove_empty(run: Run, stack: str) -> Result:
    """Remove a stack of which no run has noted anything yet, so that it has no resources.

    The engine refuses one that has: by then a run that is at work may have made them.
    """
    repair = run.backend.stack(stack).recovery(run.line(stack), forge.has_ended)
    repair.take_up()
    repair.when_unlocked(repair.ask_for_lock)
    run.backend.remove(stack)
    return Result(stack, Outcome.CHANGES, notes=tuple(repair.notes))


def _remove_stack(run: Run, stack: str) -> Result:
    engine, line = run.backend.stack(stack), run.line(stack)
    repair = engine.recovery(line, forge.has_ended)
    repair.take_up()
    done = repair.when_unlocked(lambda: engine.clear(line))
    result = deployment.result_of(stack, done).noting(*repair.notes)
    if done.failure:
        return result
    if left := engine.resources():
        names = ", ".join(f"`{each['urn'].rpartition('::')[2]}`" for each in left)
        return result.noting(f"Kept, because protected: {names}.")
    run.backend.remove(stack)
    return replace(result, outcome=Outcome.CHANGES)


# Orphans.


@dataclass(frozen=True)
class Orphan:
    """One resource: the stack that it was made for, its name for people, its address, its time."""

    stack: str
    name: str
    url: str
    made: datetime
    runs_jobs: bool = False
    """Whether it is an account that Vertex AI runs a stack's jobs as."""

    @property
    def is_job(self) -> bool:
        """Whether it is a custom job of Vertex AI, which is cancelled."""
        return "/customJobs/" in self.url


def sweep_orphans(
    run: Run, google: Google, project: str, now: datetime, before: Collection[str], *, remove: bool
) -> list[Result]:
    """Name, or remove, resources of requests' stacks that the backend no longer has.

    Args:
        project: where requests' stacks are.
        before: the stacks that the backend had when the run began.
    """
    labelled = (
        _orphan(what, stack, link, resource)
        for what, owner, link, resource in _labelled(google, project)
        if (stack := _stack_by_labels(owner))
    )
    # A request has its labels once for each of its TPUs.
    found = [*dict.fromkeys(labelled), *_described(google, project)]
    # Asked afterwards: a stack exists before its first resource.
    known = run.backend.stacks()
    found = [each for each in found if each.stack not in known]
    found = [*_custom_jobs(google, project, found), *found]
    results, room = [], MOST_ORPHANS
    for stack in sorted({each.stack for each in found}):
        own = [each for each in found if each.stack == stack]
        why = _why_kept(own, before, now, room) if remove else "`--remove-orphans` deletes them."
        if why:
            names = ", ".join(each.name for each in own)
            note = f"Not in any state: {names}. {why}"
            results.append(Result(stack, Outcome.NO_CHANGE, notes=(note,)))
        else:
            room -= len(own)
            results.append(_removed(stack, own, _remove_orphans(google, own)))
    return results


def _why_kept(own: list[Orphan], before: Collection[str], now: datetime, room: int) -> str:
    """Return why nothing of a stack is deleted although no state knows of it; empty if it is."""
    if not any(map(pipeline.REQUEST.fullmatch, before)):
        return (
            "They stay, because the backend has no PR stack and may be the wrong one. If it's the "
            "right one, delete them yourself."
        )
    if max(each.made for each in own) > now - SETTLED:
        return "They stay until all are two hours old, because a run may still be creating them."
    if len(own) > room:
        return f"They wait for the next sweep, because one deletes at most {MOST_ORPHANS} of these."
    return ""


def _removed(stack: str, own: list[Orphan], left: dict[Orphan, str]) -> Result:
    """Return what a removal did; it failed if not even a part of it went."""
    if len(left) == len(own):
        return failed(stack, "\n".join(left.values()))
    gone = ", ".join(each.name for each in own if each not in left)
    notes = [f"Deleted, because no state lists them: {gone}."]
    if left:
        notes.append(f"Left for the next sweep: {'; '.join(left.values())}")
    return Result(stack, Outcome.CHANGES, notes=tuple(notes))


def _remove_orphans(google: Google, orphans: list[Orphan]) -> dict[Orphan, str]:
    """Start to delete; return what can't be deleted yet, and why. A later run gets it."""
    left = {}
    ending = any(each.is_job for each in orphans)
    in_a_network = re.compile("/(firewalls|routers|subnetworks)/")
    filled = {each.stack for each in orphans if in_a_network.search(each.url)}
    for orphan in orphans:
        if "/global/networks/" in orphan.url and orphan.stack in filled:
            # Google accepts the call and fails later, in an operation that is not watched.
            left[orphan] = f"{orphan.name}: waits until nothing is in it"
            continue
        if ending and orphan.runs_jobs:
            # The next run knows by it alone whose the jobs are.
            left[orphan] = f"{orphan.name}: waits until no custom job runs as it"
            continue
        try:
            _remove_orphan(google, orphan)
        except NotFound:
            continue
        except TpustackError as error:
            left[orphan] = f"{orphan.name}: {error}"
    return left


def _remove_orphan(google: Google, orphan: Orphan) -> None:
    if orphan.is_job:
        google.post(f"{orphan.url}:cancel", {})
        return
    if orphan.url.startswith(_STORAGE):
        for each in _listed(google, f"{orphan.url}/o", "items", versions="true"):
            url = f"{orphan.url}/o/{quote(each['name'], safe='')}"
            google.delete(url, {"generation": each["generation"]})
    # `force` deletes the queue's TPU VMs along with the request.
    google.delete(orphan.url, {"force": "true"} if "/queuedResources/" in orphan.url else None)


def _listed(google: Google, url: str, field: str, **parameters: str) -> Iterator[Json]:
    """Yield the items of a list; nothing where the API is disabled, which has no resources."""
    try:
        yield from google.pages(url, field, parameters, partial=True)
    except Forbidden as error:
        if not says_disabled(error):
            raise


def _in_compute(google: Google, project: str, collection: str) -> Iterator[Json]:
    """Yield a collection of Compute Engine: a global one, or one of all places (aggregatedList).

    The latter have names without a folder, such as `disks`.
    """
    place, _, name = collection.rpartition("/")
    url = f"{COMPUTE}/projects/{project}/{place or 'aggregated'}/{name}"
    return _listed(google, url, "items" if place else name)


def _labelled(google: Google, project: str) -> Iterator[tuple[str, Json, str, Json]]:
    """Yield what can have labels, in the order in which it can be deleted.

    Each with what it is, what has its labels, its address, and the whole resource.
    """
    tpus = f"{_TPU}/projects/{project}/locations/-"
    for entry in _listed(google, f"{tpus}/queuedResources", "queuedResources"):
        for spec in entry.get("tpu", {}).get("nodeSpec", []):
            yield "queued resource", spec["node"], f"{_TPU}/{entry['name']}", entry
    for node in _listed(google, f"{tpus}/nodes", "nodes"):
        if not node.get("queuedResource"):
            yield "TPU", node, f"{_TPU}/{node['name']}", node
    listed = partial(_in_compute, google, project)
    templates = {_at_api(each["selfLink"]): each for each in listed("global/instanceTemplates")}
    # A group recreates its VM, so it goes first.
    for group in listed("instanceGroupManagers"):
        # A group has no labels. What a VM says about its group anybody may have written.
        if template := templates.get(_at_api(group["instanceTemplate"])):
            yield "group of VM", template["properties"], group["selfLink"], group
    for instance in listed("instances"):
        metadata = instance.get("metadata", {}).get("items", [])
        if not any(each["key"] == "created-by" for each in metadata):
            yield "VM", instance, instance["selfLink"], instance
    for template in templates.values():
        yield "template", template["properties"], template["selfLink"], template
    for disk in listed("disks"):
        yield "disk", disk, disk["selfLink"], disk
    for bucket in _listed(google, f"{_STORAGE}/b", "items", project=project):
        yield "bucket", bucket, f"{_STORAGE}/b/{bucket['name']}", bucket


def _stack_by_labels(labelled: Json) -> str:
    """Return the request's stack of this backend that a resource's labels name, or nothing."""
    labels = labelled.get("labels") or {}
    stack = str(labels.get("tpu-stack", ""))
    own = {"managed-by": "pulumi", "request": stack, MARK: mark_of(stack)}
    return stack if pipeline.REQUEST.fullmatch(stack) and own.items() <= labels.items() else ""


def _described(google: Google, project: str) -> Iterator[Orphan]:
    """Yield what has a request's stack of this backend in its description, in order of deletion.

    What is still in use when its turn comes goes with a later run.
    """
    listed = partial(_in_compute, google, project)
    for check in listed("global/healthChecks"):
        if stack := _stack_by_description(check):
            yield _orphan("health check", stack, check["selfLink"], check)
    parts = {"firewall rule": "global/firewalls", "router": "routers", "subnetwork": "subnetworks"}
    for network in listed("global/networks"):
        if not (stack := _stack_by_description(network)):
            continue
        for what, collection in parts.items():
            for part in listed(collection):
                if _at_api(part["network"]) == _at_api(network["selfLink"]):
                    yield _orphan(what, stack, part["selfLink"], part)
        yield _orphan("network", stack, network["selfLink"], network)
    for account in _listed(google, f"{_IAM}/projects/{project}/serviceAccounts", "accounts"):
        if stack := _stack_by_description(account):
            url = f"{_IAM}/{account['name']}"
            name, runs_jobs = f"account {account['email']}", account.get("displayName") == VERTEX
            yield Orphan(stack, name, url, _LONG_AGO, runs_jobs)


def _stack_by_description(resource: Json) -> str:
    """Return the request's stack that made a resource; empty if none of this backend did."""
    found = _MADE.fullmatch(resource.get("description") or "")
    is_own = found and found["mark"] == mark_of(found["stack"])
    return found["stack"] if found and is_own and pipeline.REQUEST.fullmatch(found["stack"]) else ""


def _orphan(what: str, stack: str, link: str, resource: Json) -> Orphan:
    url = _at_api(link)
    return Orphan(stack, f"{what} {url.rpartition('/')[2]}", url, _creation_time(resource))


def _custom_jobs(google: Google, project: str, orphans: Iterable[Orphan]) -> Iterator[Orphan]:
    """Yield the jobs that have not ended and run as an account among `orphans`.

    Without such an account no region is asked.

    Raises:
        TpustackError: the caller may not look; what is not found here would lose its account.
    """
    stacks = {each.url.rpartition("/")[2]: each.stack for each in orphans if each.runs_jobs}
    for region in vertex_regions() if stacks else ():
        root = vertex_root(region)
        url = f"{root}/projects/{project}/locations/{region}/customJobs"
        try:
            for job in _listed(google, url, "customJobs", filter=UNENDED):
                if stack := stacks.get(account_of(job)):
                    # Its title is whatever a submitter wrote.
                    name = f"custom job {job['name'].rpartition('/')[2]} in {region}"
                    yield Orphan(stack, name, f"{root}/{job['name']}", _creation_time(job))
        except Forbidden as error:
            raise TpustackError(
                f"{error}. Custom jobs may run as {', '.join(sorted(stacks))}, whose stacks are in "
                "no state. To list them you need aiplatform.customJobs.list, which `tpustack "
                "bootstrap` grants"
            ) from None


def _creation_time(resource: Json) -> datetime:
    """Return when a resource was made; the end of time if Google does not say."""
    for name in ("creationTimestamp", "createTime", "timeCreated"):
        if name in resource:
            return parse_time(str(resource[name]))
    return datetime.max.replace(tzinfo=timezone.utc)


def _at_api(link: str) -> str:
    """Return a resource's address at the API that can delete it."""
    return link.replace("https://www.googleapis.com/compute/v1", COMPUTE)
