"""Whether the network of managed training is peered with Google's services.

A stack does not make the peering. It belongs to the network, not to who uses it: Vertex AI has one
network a region and project, other services have addresses of the same range, and Google refuses to
take it away while any of them has. Source: "Set up VPC Network Peering",
docs.cloud.google.com/vertex-ai/docs/general/vpc-peering.
"""

from __future__ import annotations

from collections.abc import Iterator

from tpustack.cloud.google import Google, NotFound
from tpustack.live.finding import OK, WRONG, Asked, Finding

CURE = (
    "Reserve a range and connect it to servicenetworking.googleapis.com (docs/vertex.md), or leave "
    "jobs.vertex.network out: jobs need it for private addresses alone"
)
_NAME, _ACTIVE = "servicenetworking-googleapis-com", "ACTIVE"
_COMPUTE = "https://compute.googleapis.com/compute/v1"


def why_not_peered(google: Google, network: str) -> str:
    """Return why Vertex AI can't use `projects/NUMBER/global/networks/NAME`; empty if it can.

    Raises:
        TpustackError: nobody may look.
    """
    try:
        found = google.get(f"{_COMPUTE}/{network}", {"fields": "peerings(name,state)"})
    except NotFound:
        return f"there is no {network}"
    states = {one["name"]: one.get("state") for one in found.get("peerings", ())}
    if _NAME not in states:
        return f"{network} has no peering {_NAME}"
    if states[_NAME] != _ACTIVE:
        return f"the peering {_NAME} of {network} is {states[_NAME]}, not {_ACTIVE}"
    return ""


def peering(asked: Asked) -> Iterator[Finding]:
    """Ask whether the network that jobs on Vertex AI are to reach is peered with it."""
    vertex = asked.settings.jobs.vertex
    if vertex is None or vertex.network is None:
        return
    why = why_not_peered(asked.google, vertex.network)
    if why:
        yield Finding("peering", WRONG, f"jobs.vertex.network: {why}", CURE)
    else:
        yield Finding("peering", OK, f"{vertex.network} is peered with Google's services")
