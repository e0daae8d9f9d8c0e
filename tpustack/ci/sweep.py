"""`tpustack ci sweep` and `destroy`: remove stacks that are no longer needed, and orphans.

An orphan is a resource of a request's stack that exists at Google and is in no state. It is
recognized by all labels that each resource of such a stack gets; one is its mark, which only a
stack of this name in this backend has. Accounts, networks and health checks can have no labels:
their descriptions have the mark (`infra.names.mark_of`). A custom job of Vertex AI belongs to the
stack whose account it runs as: its own labels are whatever a submitter wrote.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from infra.catalog import vertex_regions
from infra.names import MADE_FOR, MARK, VERTEX, mark_of
from infra.resources.vertex import UNENDED, account_of
from tpu_core.google import vertex_root
from tpustack.ci.deployment import result_of
from tpustack.ci.forge import has_ended
from tpustack.ci.pipeline import REQUEST, reason_to_sweep, tags_are_complete
from tpustack.ci.result import Outcome, Result, Run, explained, failed
from tpustack.cloud.google import Forbidden, Google, NotFound, parse_time, says_disabled
from tpustack.errors import TpustackError
from tpustack.recovery.repair import Repair

# Bounds what a mistake in the branches or the backend can cost.
MOST_STACKS, MOST_ORPHANS = 10, 60
# Google's lists may lag behind what a run does; a run itself is known by its stack.
SETTLED = timedelta(hours=2)
_BUCKET = "gcp:storage/bucket:Bucket"
COMPUTE = "https://compute.googleapis.com/compute/v1"
_STORAGE = "https://storage.googleapis.com/storage/v1"
_TPU = "https://tpu.googleapis.com/v2"
_IAM = "https://iam.googleapis.com/v1"
_IN_A_NETWORK = re.compile("/(firewalls|routers|subnetworks)/")
_MADE = re.compile(re.escape(MADE_FOR) + r"(?P<stack>\S+) \((?P<mark>[0-9a-f]+)\)")
# Google does not say when an account was made; the rest of its stack does.
_LONG_AGO = datetime.min.replace(tzinfo=timezone.utc)
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Orphan:
    """One resource: the stack that it was made for, its name for people, its address, its time."""

    stack: str
    name: str
    url: str
    made: datetime

    @property
    def runs_jobs(self) -> bool:
        """Whether it is an account that Vertex AI runs a stack's jobs as."""
        return "/serviceAccounts/" in self.url and f"{VERTEX}@" in self.url

    @property
    def is_job(self) -> bool:
        """Whether it is a custom job of Vertex AI, which is cancelled."""
        return "/customJobs/" in self.url


def sweep(run: Run, branches: set[str], now: datetime) -> list[Result]:
    """Remove the stacks of requests whose branch is gone or whose time is up."""
    results: list[Result] = []
    for stack in sorted(filter(REQUEST.fullmatch, run.backend.stacks())):
        try:
            tags = run.backend.tags(stack)
            why = reason_to_sweep(tags, branches, now)
        except TpustackError as error:
            results.append(failed(stack, str(error)))
            continue
        if why and len(results) < MOST_STACKS:
            remove = _remove_stack if tags_are_complete(tags) else _remove_empty
            results.append(explained(stack, lambda: remove(run, stack)).noting(why))  # noqa: B023
        elif why:
            note = f"Left for the next sweep: one removes at most {MOST_STACKS} stacks."
            results.append(Result(stack, Outcome.NO_CHANGE, notes=(why, note)))
    return results


def sweep_orphans(
    run: Run,
    google: Google,
    project: str,
    now: datetime,
    before: Collection[str],
    *,
    remove: bool,
) -> list[Result]:
    """Name, or remove, resources of requests' stacks that the backend no longer has.

    Args:
        project: where requests' stacks are.
        before: the stacks that the backend had when the run began.
    """
    found = [*dict.fromkeys(_labelled(google, project)), *_described(google, project)]
    # Asked afterwards: a stack exists before its first resource.
    known = run.backend.stacks()
    found = [each for each in found if each.stack not in known]
    found = [*_custom_jobs(google, project, found), *found]
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
            results.append(_removed(stack, own, _remove_orphans(google, own)))
    return results


def _why_kept(own: list[Orphan], before: Collection[str], now: datetime, room: int) -> str:
    """Return why nothing of a stack is deleted although no state knows of it; empty if it is."""
    if not any(map(REQUEST.fullmatch, before)):
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


def destroy(run: Run, stack: str, *, delete_data: bool) -> Result:
    """Delete a stack's resources except protected ones; remove the stack if none is left."""
    if stack not in run.backend.stacks():
        return failed(stack, f"the backend has no stack {stack}")
    lost = [] if delete_data else _buckets_with_data(run.backend.stack(stack).resources())
    if lost:
        return failed(
            stack,
            f"{', '.join(lost)}: with forceDestroy and without protection, all objects would go, "
            "too. Nothing was deleted. Deploy bucket.protect: true or bucket.forceDestroy: false "
            "first, or say --delete-data",
        )
    return explained(stack, lambda: _remove_stack(run, stack))


def _buckets_with_data(resources: Iterable[Json]) -> list[str]:
    """Return the buckets that a destruction deletes along with their objects."""
    return [
        f"bucket {(each.get('outputs') or {}).get('name', each['urn'])}"
        for each in resources
        if each["type"] == _BUCKET
        and not each.get("protect")
        and not each.get("retainOnDelete")
        and (each.get("outputs") or {}).get("forceDestroy")
    ]


def _remove_empty(run: Run, stack: str) -> Result:
    """Remove a stack of which no run has noted anything yet, so that it has no resources.

    The engine refuses one that has: by then a run that is at work may have made them.
    """
    recovery = run.backend.stack(stack).recovery(run.line(stack), has_ended)
    repair = Repair(recovery)
    repair.take_up()
    repair.when_unlocked(recovery.ask_for_lock)
    run.backend.remove(stack)
    return Result(stack, Outcome.CHANGES, notes=tuple(repair.notes))


def _remove_stack(run: Run, stack: str) -> Result:
    engine, line = run.backend.stack(stack), run.line(stack)
    repair = Repair(engine.recovery(line, has_ended))
    repair.take_up()
    done = repair.when_unlocked(lambda: engine.clear(line))
    result = result_of(stack, done).noting(*repair.notes)
    if done.failure:
        return result
    if left := engine.resources():
        names = ", ".join(f"`{each['urn'].rpartition('::')[2]}`" for each in left)
        return result.noting(f"Left standing because it is protected: {names}.")
    run.backend.remove(stack)
    return replace(result, outcome=Outcome.CHANGES)


def _remove_orphans(google: Google, orphans: list[Orphan]) -> dict[Orphan, str]:
    """Start to delete; return what can't be deleted yet, and why. A later run gets it."""
    left = {}
    ending = any(each.is_job for each in orphans)
    filled = {each.stack for each in orphans if _IN_A_NETWORK.search(each.url)}
    for orphan in orphans:
        if "/global/networks/" in orphan.url and orphan.stack in filled:
            # Google accepts the call and fails later, in an operation that is not watched.
            left[orphan] = f"{orphan.name}: it goes once nothing is in it"
            continue
        if ending and orphan.runs_jobs:
            # The next run knows by it alone whose the jobs are.
            left[orphan] = f"{orphan.name}: it stays until no custom job runs as it"
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
        google.post(f"{orphan.url}:cancel", {}, {})
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


def _aggregated(google: Google, project: str, collection: str) -> Iterator[Json]:
    """Yield what a project has in all zones and regions."""
    return _listed(google, f"{COMPUTE}/projects/{project}/aggregated/{collection}", collection)


def _labelled(google: Google, project: str) -> Iterator[Orphan]:
    """Yield the resources labelled as a request's, in the order in which they can be deleted."""
    everywhere = f"{_TPU}/projects/{project}/locations/-"
    for entry in _listed(google, f"{everywhere}/queuedResources", "queuedResources"):
        for spec in entry.get("tpu", {}).get("nodeSpec", []):
            yield from _orphan(spec["node"], "TPU request", f"{_TPU}/{entry['name']}", entry)
    for node in _listed(google, f"{everywhere}/nodes", "nodes"):
        if not node.get("queuedResource"):
            yield from _orphan(node, "TPU", f"{_TPU}/{node['name']}")
    yield from _machines(google, project)
    for disk in _aggregated(google, project, "disks"):
        yield from _orphan(disk, "disk", disk["selfLink"])
    for bucket in _listed(google, f"{_STORAGE}/b", "items", project=project):
        yield from _orphan(bucket, "bucket", f"{_STORAGE}/b/{bucket['name']}")


def _machines(google: Google, project: str) -> Iterator[Orphan]:
    """Yield VMs, and instance groups with their templates: a group recreates its VM."""
    url = f"{COMPUTE}/projects/{project}/global/instanceTemplates"
    templates = {_at_api(each["selfLink"]): each for each in _listed(google, url, "items")}
    for group in _aggregated(google, project, "instanceGroupManagers"):
        # A group has no labels. What a VM says about its group anybody may have written.
        if template := templates.get(_at_api(group["instanceTemplate"])):
            yield from _orphan(template["properties"], "group of VM", group["selfLink"], group)
    for instance in _aggregated(google, project, "instances"):
        metadata = instance.get("metadata", {}).get("items", [])
        if not any(each["key"] == "created-by" for each in metadata):
            yield from _orphan(instance, "VM", instance["selfLink"])
    for template in templates.values():
        yield from _orphan(template["properties"], "template", template["selfLink"], template)


def _orphan(labelled: Json, what: str, link: str, resource: Json | None = None) -> Iterator[Orphan]:
    """Yield what has the labels of a request's stack of this backend; `resource` is its whole."""
    labels = labelled.get("labels") or {}
    stack = str(labels.get("tpu-stack", ""))
    own = {"managed-by": "pulumi", "request": stack, MARK: mark_of(stack)}
    if REQUEST.fullmatch(stack) and own.items() <= labels.items():
        url = _at_api(link)
        time = _creation_time(resource or labelled)
        yield Orphan(stack, f"{what} {url.rpartition('/')[2]}", url, time)


def _described(google: Google, project: str) -> Iterator[Orphan]:
    """Yield what has a request's stack of this backend in its description, in order of deletion.

    What is still in use when its turn comes goes with a later run.
    """
    everywhere = f"{COMPUTE}/projects/{project}/global"
    for check in _listed(google, f"{everywhere}/healthChecks", "items"):
        if stack := _described_stack(check):
            yield _in_compute(stack, "health check", check)
    for network in _listed(google, f"{everywhere}/networks", "items"):
        if stack := _described_stack(network):
            parts = {
                "firewall rule": _listed(google, f"{everywhere}/firewalls", "items"),
                "router": _aggregated(google, project, "routers"),
                "subnetwork": _aggregated(google, project, "subnetworks"),
            }
            for what, found in parts.items():
                for part in found:
                    if _at_api(part["network"]) == _at_api(network["selfLink"]):
                        yield _in_compute(stack, what, part)
            yield _in_compute(stack, "network", network)
    for account in _listed(google, f"{_IAM}/projects/{project}/serviceAccounts", "accounts"):
        if stack := _described_stack(account):
            url = f"{_IAM}/{account['name']}"
            yield Orphan(stack, f"account {account['email']}", url, _LONG_AGO)


def _described_stack(resource: Json) -> str:
    """Return the request's stack that made a resource; empty if none of this backend did."""
    found = _MADE.fullmatch(resource.get("description") or "")
    if found and REQUEST.fullmatch(found["stack"]) and found["mark"] == mark_of(found["stack"]):
        return found["stack"]
    return ""


def _in_compute(stack: str, what: str, resource: Json) -> Orphan:
    url = _at_api(resource["selfLink"])
    return Orphan(stack, f"{what} {resource['name']}", url, _creation_time(resource))


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
                "no state: looking takes aiplatform.customJobs.list, which `tpustack bootstrap` "
                "grants"
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
