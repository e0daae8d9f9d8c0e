"""Resources of requests' stacks that exist at Google and in no state.

They are recognized by all three labels that each resource of such a stack gets. Resources without
labels (networks, accounts, grants) cost nothing; the request's next deployment takes them over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tpustack.ci.requests import NAME
from tpustack.cloud.google import Google, NotFound
from tpustack.errors import TpustackError

_COMPUTE = "https://compute.googleapis.com/compute/v1"
_STORAGE = "https://storage.googleapis.com/storage/v1"
_TPU = "https://tpu.googleapis.com/v2"
# Deletes the queue's TPU VMs along with the request.
_FORCE = {"force": "true"}
Json = Mapping[str, Any]


@dataclass(frozen=True)
class Orphan:
    """One resource: the stack that it was made for, its name for people, and its address."""

    stack: str
    name: str
    url: str


def find(google: Google, project: str) -> list[Orphan]:
    """Return the resources labelled as a request's, in the order in which they can be deleted.

    List the stacks afterwards: a stack exists before its first resource.
    """
    return list(dict.fromkeys(_labelled(google, project)))


def remove(google: Google, orphans: list[Orphan]) -> list[str]:
    """Start to delete; return what can't be deleted yet, and why. A later run gets it."""
    left = []
    for orphan in orphans:
        try:
            if orphan.url.startswith(_STORAGE):
                _empty(google, orphan.url)
            google.delete(orphan.url, _FORCE if "/queuedResources/" in orphan.url else None)
        except NotFound:
            continue
        except TpustackError as error:
            left.append(f"{orphan.name}: {error}")
    return left


def _labelled(google: Google, project: str) -> Iterator[Orphan]:
    at = f"{_TPU}/projects/{project}/locations/-"
    for entry in _listed(google, f"{at}/queuedResources", "queuedResources"):
        for spec in entry.get("tpu", {}).get("nodeSpec", []):
            yield from _orphan(spec["node"], "TPU request", f"{_TPU}/{entry['name']}")
    for node in _listed(google, f"{at}/nodes", "nodes"):
        if not node.get("queuedResource"):
            yield from _orphan(node, "TPU", f"{_TPU}/{node['name']}")
    for instance in _aggregated(google, project, "instances"):
        metadata = instance.get("metadata", {}).get("items", [])
        # Deleting only the VM would make its managed group create it again.
        group = next((each["value"] for each in metadata if each["key"] == "created-by"), "")
        link = f"{_COMPUTE}/{group[group.index('projects/') :]}" if group else instance["selfLink"]
        yield from _orphan(instance, "group of VM" if group else "VM", link)
    for disk in _aggregated(google, project, "disks"):
        yield from _orphan(disk, "disk", disk["selfLink"])
    for bucket in _listed(google, f"{_STORAGE}/b", "items", project=project):
        yield from _orphan(bucket, "bucket", f"{_STORAGE}/b/{bucket['name']}")


def _orphan(resource: Json, what: str, link: str) -> Iterator[Orphan]:
    labels = resource.get("labels") or {}
    stack = str(labels.get("tpu-stack", ""))
    ours = labels.get("managed-by") == "pulumi" and labels.get("request") == stack
    if ours and NAME.fullmatch(stack):
        url = link.replace("https://www.googleapis.com/compute/v1", _COMPUTE)
        yield Orphan(stack, f"{what} {url.rpartition('/')[2]}", url)


def _empty(google: Google, bucket: str) -> None:
    for each in _listed(google, f"{bucket}/o", "items", versions="true"):
        url = f"{bucket}/o/{quote(each['name'], safe='')}"
        google.delete(url, {"generation": each["generation"]})


def _aggregated(google: Google, project: str, collection: str) -> Iterator[Json]:
    url = f"{_COMPUTE}/projects/{project}/aggregated/{collection}"
    for page in _pages(google, url, {}):
        for scoped in page.get("items", {}).values():
            yield from scoped.get(collection, [])


def _listed(google: Google, url: str, items: str, **parameters: str) -> Iterator[Json]:
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
