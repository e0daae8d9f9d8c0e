"""Cloud TPUs in all their forms: what their states mean, where they are, how they are called.

A plain TPU VM and a classic node are nodes. A queued resource stands for one or several nodes,
which Google gives and takes together.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from tpu_core.contract import Metadata
from tpu_core.google import Call, GoogleError, Json, is_missing, message

TPU: Final = "https://tpu.googleapis.com/"
"""The address of the TPU API."""

Phase = Literal[
    "ready", "waiting", "coming", "maintenance", "leaving", "lost", "stopped", "deleting", "unknown"
]
"""What a state means.

ready: it works, as far as Google knows. waiting: for capacity, in the queue. coming: Google creates
or starts it. maintenance: it is back soon without anyone's help. leaving: Google takes it away.
lost: it has been taken away for good; what is left only holds quota and its name. stopped: a person
or a limit stopped it, and it can be started. deleting: someone deleted it.
"""
# https://docs.cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes#state
_NODES: Final[dict[str, Phase]] = {
    "READY": "ready",
    **dict.fromkeys(("CREATING", "STARTING"), "coming"),
    **dict.fromkeys(("RESTARTING", "REIMAGING", "REPAIRING"), "maintenance"),
    **dict.fromkeys(("PREEMPTED", "TERMINATED"), "lost"),
    **dict.fromkeys(("STOPPING", "STOPPED", "HIDING", "HIDDEN", "UNHIDING"), "stopped"),
    "DELETING": "deleting",
}
# https://docs.cloud.google.com/tpu/docs/queued-resources#manage
_REQUESTS: Final[dict[str, Phase]] = {
    "ACTIVE": "ready",
    **dict.fromkeys(("ACCEPTED", "WAITING_FOR_RESOURCES"), "waiting"),
    **dict.fromkeys(("CREATING", "PROVISIONING"), "coming"),
    "SUSPENDING": "leaving",
    **dict.fromkeys(("SUSPENDED", "FAILED"), "lost"),
    "DELETING": "deleting",
}


def phase_of(state: str) -> Phase:
    """Return what the state of a node means."""
    return _NODES.get(state, "unknown")


def phase_of_request(state: str) -> Phase:
    """Return what the state of a queued resource means."""
    return _REQUESTS.get(state, "unknown")


@dataclass(frozen=True)
class Place:
    """Where the TPUs and the traces of training are; `bucket` has no gs:// before its name.

    Attributes:
        zone: the zone in which they are, or that the stack prefers.
        further: the zones in which queued TPUs may be instead, as the stack says now.
        here: the TPU as the TPU API would say it, if this machine of Compute Engine is its host.
        form: `machine` or `slice` of a TPU on Compute Engine, which this VM looks after.
    """

    project: str
    zone: str
    bucket: str
    further: Callable[[], Sequence[str]] = tuple
    here: Json | None = None
    form: str = ""

    def everywhere(self) -> Iterator["Place"]:
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
    """Return where a TPU is, and Google's answer; it is 404 if the TPU is in none of the zones.

    A machine that is the TPU asks nothing: as long as it runs, the TPU is READY.
    """
    if place.here is not None:
        return place, 200, place.here
    for one in place.everywhere():
        status, found = call("GET", f"{TPU}v2/{one.node(name)}", None)
        if not is_missing(status, found):
            return one, status, found
    return place, 404, {}


def start(call: Call, place: Place, name: str, node: Json) -> None:
    """Start a stopped TPU. Raises GoogleError."""
    status, answer = call("POST", f"{TPU}{version(node)}/{place.node(name)}:start", "{}")
    # 404: it was deleted in between.
    if status >= 300 and status != 404:
        raise GoogleError(status, f"{name} can't be started: {message(answer)}")


def short_name(node: Json) -> str:
    """Return a TPU's name without what it is in."""
    return str(node["name"].rpartition("/")[2])


def state_of(node: Json) -> str:
    """Return a state; Google's JSON leaves the first of its states out, which is this one."""
    return str(node.get("state") or "STATE_UNSPECIFIED")


def is_queued(node: Json) -> bool:
    """Return whether a TPU belongs to a queued resource."""
    return bool(node.get("queuedResource"))


def version(node: Json) -> str:
    """Return the API version that changes this kind of TPU: classic nodes have only v1."""
    return "v1" if node.get("apiVersion", "").startswith("V1") else "v2"


def in_zone(request: Json, parent: str) -> Json:
    """Return a request as a place gets it: its TPUs are there, and their machines know it."""
    specs = []
    for spec in request["tpu"]["nodeSpec"]:
        node = dict(spec["node"])
        if Metadata.TPU_ZONE in node.get("metadata", {}):
            zone = parent.rpartition("/")[2]
            node["metadata"] = {**node["metadata"], Metadata.TPU_ZONE: zone}
        specs.append({**spec, "parent": parent, "node": node})
    return {**request, "tpu": {**request["tpu"], "nodeSpec": specs}}


def labels_of(body: Json) -> Json:
    """Return the labels in the body of a TPU or of a queued resource."""
    if "tpu" in body:
        specs = body["tpu"].get("nodeSpec", [])
        body = specs[0].get("node", {}) if specs else {}
    return dict(body.get("labels", {}))


@dataclass(frozen=True)
class Seen:
    """A TPU or a queued resource as Google shows it.

    Attributes:
        phase: what the state means.
        state: Google's own word for it, and why, if Google says so.
        kind: what its loss counts as: preemption, failure, or shortage, which no budget bounds.
        created: when it was created.
        labels: with the mark of the stack that has made it.
        nodes: the TPUs whose workers have to answer.
        address: what the call that deletes it names.
        zone: where it is.
    """

    phase: Phase
    state: str
    kind: str
    created: str | None
    labels: Json
    nodes: tuple[Json, ...]
    address: str
    zone: str
