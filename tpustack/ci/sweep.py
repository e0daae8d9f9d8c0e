"""`tpustack ci sweep` and `destroy`: remove stacks that nobody needs any more."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import quote

from infra.catalog.vertex import regions
from infra.hosts import vertex_root
from infra.managed_jobs import UNENDED, account_of
from infra.names import MADE_FOR, MANAGED, MARK, mark_of
from tpustack.ci import pipeline
from tpustack.ci.deployment import result_of
from tpustack.ci.forge import has_ended
from tpustack.ci.pipeline import NAME
from tpustack.ci.result import Outcome, Result, Run, explained, failed
from tpustack.cloud import google
from tpustack.cloud.google import Forbidden, Google, NotFound
from tpustack.errors import TpustackError
from tpustack.recovery.repair import Repair

# A mistake in what the sweeper is told must not cost everything at once.
MOST_STACKS, MOST_ORPHANS = 10, 60
# Google's lists may lag behind what a run does; a run itself is known by its stack.
SETTLED = timedelta(hours=2)
_BUCKET = "gcp:storage/bucket:Bucket"


def sweep(job: Run, branches: set[str], now: datetime) -> list[Result]:
    """Remove the stacks of requests whose branch is gone or whose time is up."""
    results: list[Result] = []
    for stack in sorted(filter(pipeline.NAME.fullmatch, job.backend.stacks())):
        try:
            tags = job.backend.tags(stack)
            why = pipeline.reason_to_sweep(tags, branches, now)
        except TpustackError as error:
            results.append(failed(stack, str(error)))
            continue
        if why and len(results) < MOST_STACKS:
            go = _gone if pipeline.tags_are_complete(tags) else _empty
            results.append(explained(stack, lambda: go(job, stack)).noting(why))  # noqa: B023
        elif why:
            note = f"Left for the next sweep: one removes at most {MOST_STACKS} stacks."
            results.append(Result(stack, Outcome.NO_CHANGE, notes=(why, note)))
    return results


def sweep_orphans(
    job: Run,
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
    found = [*find_labelled(google, project), *find_unlabelled(google, project)]
    known = job.backend.stacks()
    found = [each for each in found if each.stack not in known]
    found = [*find_custom_jobs(google, project, found), *found]
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
            results.append(_removed(stack, own, remove_orphans(google, own)))
    return results


def _why_kept(own: list[Orphan], before: Collection[str], now: datetime, room: int) -> str:
    """Return why nothing of a stack is deleted although no state knows of it; empty if it is."""
    if not any(map(pipeline.NAME.fullmatch, before)):
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


def destroy(job: Run, stack: str, *, delete_data: bool) -> Result:
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


def _empty(job: Run, stack: str) -> Result:
    """Remove a stack of which no run has noted anything yet, so that it has no resources.

    The engine refuses one that has: by then a run that is at work may have made them.
    """
    recovery = job.backend.stack(stack).recovery(job.line(stack), has_ended)
    repair = Repair(recovery)
    repair.take_up()
    repair.when_unlocked(recovery.ask_for_lock)
    job.backend.remove(stack)
    return Result(stack, Outcome.CHANGES, notes=tuple(repair.notes))


def _gone(job: Run, stack: str) -> Result:
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


# --- Resources of requests' stacks that exist at Google and in no state.
#
# They are recognized by all labels that each resource of such a stack gets. One is its mark, which
# only a stack of this name in this backend has; what can have no labels is found by it alone
# (unlabelled.py).

COMPUTE = "https://compute.googleapis.com/compute/v1"
_STORAGE = "https://storage.googleapis.com/storage/v1"
_TPU = "https://tpu.googleapis.com/v2"
# Deletes the queue's TPU VMs along with the request.
_FORCE = {"force": "true"}
_IN_A_NETWORK = re.compile("/(firewalls|routers|subnetworks)/")
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
        return "/serviceAccounts/" in self.url and f"{MANAGED}@" in self.url

    @property
    def is_job(self) -> bool:
        """Whether it is a custom job of Vertex AI, which is cancelled."""
        return "/customJobs/" in self.url


def find_labelled(google: Google, project: str) -> list[Orphan]:
    """Return the resources labelled as a request's, in the order in which they can be deleted.

    List the stacks afterwards: a stack exists before its first resource.
    """
    return list(dict.fromkeys(_labelled(google, project)))


def remove_orphans(google: Google, orphans: list[Orphan]) -> dict[Orphan, str]:
    """Start to delete; return what can't be deleted yet, and why. A later run gets it."""
    left = {}
    ending = any(each.is_job for each in orphans)
    filled = {each.stack for each in orphans if _IN_A_NETWORK.search(each.url)}
    for orphan in orphans:
        if "/global/networks/" in orphan.url and orphan.stack in filled:
            # Google takes the call and fails later, in an operation that nobody would look at.
            left[orphan] = f"{orphan.name}: it goes once nothing is in it"
            continue
        if ending and orphan.runs_jobs:
            # By which alone the next run knows whose the jobs are.
            left[orphan] = f"{orphan.name}: it stays until no custom job runs as it"
            continue
        try:
            _remove(google, orphan)
        except NotFound:
            continue
        except TpustackError as error:
            left[orphan] = f"{orphan.name}: {error}"
    return left


def _remove(google: Google, orphan: Orphan) -> None:
    if orphan.is_job:
        google.post(f"{orphan.url}:cancel", {}, {})
        return
    if orphan.url.startswith(_STORAGE):
        _empty_bucket(google, orphan.url)
    google.delete(orphan.url, _FORCE if "/queuedResources/" in orphan.url else None)


def _labelled(google: Google, project: str) -> Iterator[Orphan]:
    at = f"{_TPU}/projects/{project}/locations/-"
    for entry in listed(google, f"{at}/queuedResources", "queuedResources"):
        for spec in entry.get("tpu", {}).get("nodeSpec", []):
            yield from _orphan(spec["node"], "TPU request", f"{_TPU}/{entry['name']}", entry)
    for node in listed(google, f"{at}/nodes", "nodes"):
        if not node.get("queuedResource"):
            yield from _orphan(node, "TPU", f"{_TPU}/{node['name']}")
    yield from _machines(google, project)
    for disk in aggregated(google, project, "disks"):
        yield from _orphan(disk, "disk", disk["selfLink"])
    for bucket in listed(google, f"{_STORAGE}/b", "items", project=project):
        yield from _orphan(bucket, "bucket", f"{_STORAGE}/b/{bucket['name']}")


def _machines(google: Google, project: str) -> Iterator[Orphan]:
    """Yield VMs, and managed groups with their templates: a group makes its VM again."""
    url = f"{COMPUTE}/projects/{project}/global/instanceTemplates"
    templates = {at_api(each["selfLink"]): each for each in listed(google, url, "items")}
    for group in aggregated(google, project, "instanceGroupManagers"):
        # A group has no labels. What a VM says about its group anybody may have written.
        if template := templates.get(at_api(group["instanceTemplate"])):
            yield from _orphan(template["properties"], "group of VM", group["selfLink"], group)
    for instance in aggregated(google, project, "instances"):
        metadata = instance.get("metadata", {}).get("items", [])
        if not any(each["key"] == "created-by" for each in metadata):
            yield from _orphan(instance, "VM", instance["selfLink"])
    for template in templates.values():
        yield from _orphan(template["properties"], "template", template["selfLink"], template)


def _orphan(labelled: Json, what: str, link: str, resource: Json | None = None) -> Iterator[Orphan]:
    """Yield what has the labels of a request's stack of this backend; `resource` is its whole."""
    labels = labelled.get("labels") or {}
    stack = str(labels.get("tpu-stack", ""))
    said = {"managed-by": "pulumi", "request": stack, MARK: mark_of(stack)}
    if NAME.fullmatch(stack) and said.items() <= labels.items():
        url = at_api(link)
        yield Orphan(
            stack, f"{what} {url.rpartition('/')[2]}", url, creation_time(resource or labelled)
        )


def creation_time(resource: Json) -> datetime:
    """Return when something was made; what does not say so was made just now, or later."""
    for name in ("creationTimestamp", "createTime", "timeCreated"):
        if name in resource:
            return google.parse_time(str(resource[name]))
    return datetime.max.replace(tzinfo=timezone.utc)


def at_api(link: str) -> str:
    """Return a resource's address at the API that can delete it."""
    return link.replace("https://www.googleapis.com/compute/v1", COMPUTE)


def _empty_bucket(google: Google, bucket: str) -> None:
    for each in listed(google, f"{bucket}/o", "items", versions="true"):
        url = f"{bucket}/o/{quote(each['name'], safe='')}"
        google.delete(url, {"generation": each["generation"]})


def aggregated(google: Google, project: str, collection: str) -> Iterator[Json]:
    """Yield what a project has in all zones and regions; nothing where the API is disabled."""
    url = f"{COMPUTE}/projects/{project}/aggregated/{collection}"
    for page in _pages(google, url, {}):
        for scoped in page.get("items", {}).values():
            yield from scoped.get(collection, [])


def listed(google: Google, url: str, items: str, **parameters: str) -> Iterator[Json]:
    """Yield the items of a list; nothing where the API is disabled."""
    for page in _pages(google, url, parameters):
        yield from page.get(items, [])


def _pages(google: Google, url: str, parameters: Mapping[str, str]) -> Iterator[Json]:
    token = ""
    while True:
        try:
            page = google.get(url, {**parameters, "pageToken": token} if token else parameters)
        except TpustackError as error:
            # A disabled API has no resources.
            if "it is disabled" in str(error):
                return
            raise
        yield page
        if not (token := page.get("nextPageToken", "")):
            return


# --- What requests' stacks leave at Google that can have no labels: accounts, networks, health checks.
#
# Their descriptions say which stack of which backend made them (`infra.names.mark_of`), so that
# nothing is touched that a stack of another backend made under the same name.

# Google does not say when; the rest of its stack does.
_ACCOUNTS_MADE = datetime.min.replace(tzinfo=timezone.utc)
_IAM = "https://iam.googleapis.com/v1"
_MADE = re.compile(re.escape(MADE_FOR) + r"(?P<stack>\S+) \((?P<mark>[0-9a-f]+)\)")


def find_unlabelled(google: Google, project: str) -> Iterator[Orphan]:
    """Yield what carries the mark of a request's stack in this backend, in the order of deletion.

    What is still in use when its turn comes goes with a later run.
    """
    everywhere = f"{COMPUTE}/projects/{project}/global"
    for check in listed(google, f"{everywhere}/healthChecks", "items"):
        if stack := _stack_of(check):
            link = at_api(check["selfLink"])
            yield Orphan(stack, f"health check {check['name']}", link, creation_time(check))
    for network in listed(google, f"{everywhere}/networks", "items"):
        if stack := _stack_of(network):
            yield from _network(google, project, stack, network)
    url = f"{_IAM}/projects/{project}/serviceAccounts"
    for account in listed(google, url, "accounts"):
        if stack := _stack_of(account):
            link = f"{_IAM}/{account['name']}"
            yield Orphan(stack, f"account {account['email']}", link, _ACCOUNTS_MADE)


def _network(google: Google, project: str, stack: str, network: Json) -> Iterator[Orphan]:
    """Yield what is in a network, and the network last."""
    firewalls = f"{COMPUTE}/projects/{project}/global/firewalls"
    parts = {
        "firewall rule": listed(google, firewalls, "items"),
        "router": aggregated(google, project, "routers"),
        "subnetwork": aggregated(google, project, "subnetworks"),
    }
    for what, found in parts.items():
        for part in found:
            if at_api(part["network"]) == at_api(network["selfLink"]):
                link = at_api(part["selfLink"])
                yield Orphan(stack, f"{what} {part['name']}", link, creation_time(part))
    yield Orphan(
        stack, f"network {network['name']}", at_api(network["selfLink"]), creation_time(network)
    )


def _stack_of(resource: Json) -> str:
    """Return the request's stack that made a resource; empty if none of this backend did."""
    made = _MADE.fullmatch(resource.get("description") or "")
    ours = made and NAME.fullmatch(made["stack"]) and made["mark"] == mark_of(made["stack"])
    return made["stack"] if made and ours else ""


# --- Custom jobs of Vertex AI that go on although the stack that they belong to has no state.
#
# Their own labels are whatever a submitter wrote. A job belongs to the stack whose account it runs
# as, and that account says by its description which stack of which backend made it (unlabelled.py).


def find_custom_jobs(google: Google, project: str, orphans: Iterable[Orphan]) -> Iterator[Orphan]:
    """Yield the jobs that have not ended and run as an account among `orphans`.

    Without such an account no region is asked.

    Raises:
        TpustackError: nobody may look; what is not found here would lose its account.
    """
    stacks = {each.url.rpartition("/")[2]: each.stack for each in orphans if each.runs_jobs}
    for region in regions() if stacks else ():
        root = vertex_root(region)
        url = f"{root}/projects/{project}/locations/{region}/customJobs"
        try:
            for job in listed(google, url, "customJobs", filter=UNENDED):
                if stack := stacks.get(account_of(job)):
                    # Its title is whatever a submitter wrote.
                    name = f"custom job {job['name'].rpartition('/')[2]} in {region}"
                    yield Orphan(stack, name, f"{root}/{job['name']}", creation_time(job))
        except Forbidden as error:
            raise TpustackError(
                f"{error}. Custom jobs may run as {', '.join(sorted(stacks))}, whose stacks are in "
                "no state: looking takes aiplatform.customJobs.list, which `tpustack bootstrap` "
                "grants"
            ) from None
