"""TODO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tpu_core.google import Call, Json, is_missing

TPU = "https://tpu.googleapis.com/"


@dataclass(frozen=True)
class Place:
    """Where the TPUs and the traces of training are; `bucket` has no gs:// before its name.

    Attributes:
        zone: the zone in which they are, or that the stack prefers.
        further: the zones in which TPUs out of the queue may be instead, as the stack says now.
    """

    project: str
    zone: str
    bucket: str
    further: Callable[[], Sequence[str]] = tuple

    def everywhere(self) -> Iterator[Place]:
        """Yield all places in which the TPUs may be."""
        yield self
        for zone in self.further():
            yield replace(self, zone=zone)

    @property
    def parent(self) -> str:
        """The name of what the TPUs are in."""
        return f"projects/{self.project}/locations/{self.zone}"

    def node(self, name: str) -> str:
        """Return the full name of a TPU."""
        return f"{self.parent}/nodes/{name}"


def look_up(place: Place, call: Call, name: str) -> tuple[Place, int, Json]:
    """Return where a TPU is, and Google's answer; it is 404 if the TPU is in none of the zones."""
    for here in place.everywhere():
        status, found = call("GET", f"{TPU}v2/{here.node(name)}", None)
        if not is_missing(status, found):
            return here, status, found
    return place, 404, {}


def short_name(node: Json) -> str:
    """Return a TPU's name without what it is in."""
    return str(node["name"].rpartition("/")[2])


def state_of(node: Json) -> str:
    """Return a state; Google's JSON leaves the first of its states out, which is this one."""
    return str(node.get("state") or "STATE_UNSPECIFIED")


def is_queued(node: Json) -> bool:
    """Return whether a TPU came out of the queue."""
    return bool(node.get("queuedResource"))


def version(node: Json) -> str:
    """Return the API version that changes this kind of TPU: classic nodes have only v1."""
    return "v1" if node.get("apiVersion", "").startswith("V1") else "v2"


def in_zone(request: Json, parent: str) -> Json:
    """Return a request as it is made in a place: its TPUs are there, and their machines know it."""
    specs = []
    for spec in request["tpu"]["nodeSpec"]:
        node = dict(spec["node"])
        if "tpu-zone" in node.get("metadata", {}):
            node["metadata"] = {**node["metadata"], "tpu-zone": parent.rpartition("/")[2]}
        specs.append({**spec, "parent": parent, "node": node})
    return {**request, "tpu": {**request["tpu"], "nodeSpec": specs}}


def labels_of(body: Json) -> Json:
    """Return the labels in the body of a TPU, or of a request for some."""
    if "tpu" in body:
        specs = body["tpu"].get("nodeSpec", [])
        body = specs[0].get("node", {}) if specs else {}
    return dict(body.get("labels", {}))
