"""Resources of requests' stacks that exist at Google and in no state.

They are recognized by all labels that each resource of such a stack gets. One is its mark, which
only a stack of this name in this backend has; what can have no labels is found by it alone
(unlabelled.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from infra.names import MARK, VERTEX, mark_of
from tpustack.ci.requests import NAME
from tpustack.cloud import times
from tpustack.cloud.google import Google, NotFound
from tpustack.errors import TpustackError

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
        return "/serviceAccounts/" in self.url and f"{VERTEX}@" in self.url

    @property
    def is_job(self) -> bool:
        """Whether it is a custom job of Vertex AI, which is cancelled."""
        return "/customJobs/" in self.url


def find(google: Google, project: str) -> list[Orphan]:
    """Return the resources labelled as a request's, in the order in which they can be deleted.

    List the stacks afterwards: a stack exists before its first resource.
    """
    return list(dict.fromkeys(_labelled(google, project)))


def remove(google: Google, orphans: list[Orphan]) -> dict[Orphan, str]:
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
        _empty(google, orphan.url)
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
        yield Orphan(stack, f"{what} {url.rpartition('/')[2]}", url, made(resource or labelled))


def made(resource: Json) -> datetime:
    """Return when something was made; what does not say so was made just now, or later."""
    for name in ("creationTimestamp", "createTime", "timeCreated"):
        if name in resource:
            return times.read(str(resource[name]))
    return datetime.max.replace(tzinfo=timezone.utc)


def at_api(link: str) -> str:
    """Return a resource's address at the API that can delete it."""
    return link.replace("https://www.googleapis.com/compute/v1", COMPUTE)


def _empty(google: Google, bucket: str) -> None:
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
