"""The state of a request in the queue, and of the TPU VMs that it became."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.queued.api import TpuApi
from infra.rest import Json

OVER = ("FAILED", "SUSPENDED", "SUSPENDING", "DELETING")
"""States of a request that Google never takes up again; it holds its quota until it is deleted."""
GONE = ("PREEMPTED", "TERMINATED")
"""States of a TPU VM that Google has taken away."""


def place(props: Mapping[str, Any]) -> str:
    """Return the parent of a request and its TPU VMs: where they are, as far as it is known."""
    return f"projects/{props['project']}/locations/{props.get('at') or props['zone']}"


def entry_name(props: Mapping[str, Any]) -> str:
    """Return the full name of a request where it is."""
    return f"{place(props)}/queuedResources/{props['name']}"


def names(props: Mapping[str, Any]) -> list[str]:
    """Return the names of a request's TPU VMs in the order of the slices.

    `props` are those of the request, or of its TPU VMs (with `nodes`, if there are several).
    """
    if "request" not in props:
        return list(props.get("nodes") or [props["name"]])
    (spec,) = props["request"]["tpu"]["nodeSpec"]
    several = spec.get("multiNodeParams")
    if not several:
        return [props["name"]]
    # The engine knows no whole numbers.
    return [f"{several['nodeIdPrefix']}-{n}" for n in range(int(several["nodeCount"]))]


def standing(api: TpuApi, props: Mapping[str, Any]) -> list[Json | None]:
    """Return a request's TPU VMs in the order of the slices, in whatever state.

    One that is not there is None. Several cost one call, not one each.
    """
    wanted = names(props)
    if len(wanted) == 1:
        return [api.get(f"{place(props)}/nodes/{wanted[0]}")]
    there = {node["name"].rpartition("/")[2]: node for node in api.list_all(place(props), "nodes")}
    return [there.get(name) for name in wanted]


def loss(api: TpuApi, props: Mapping[str, Any], entry: Json) -> str:
    """Say why a request leads to TPU VMs no more; empty if it does or still may."""
    state = entry.get("state", {})
    if state.get("state") in OVER:
        reason = state.get("failedData", {}).get("error", {}).get("message", "")
        return f"{state['state']}{f': {reason}' if reason else ''}"
    return lost(props, standing(api, props)) if state.get("state") == "ACTIVE" else ""


def lost(props: Mapping[str, Any], nodes: list[Json | None]) -> str:
    """Say what became of the first TPU VM of an ACTIVE request that is gone; empty if none is."""
    wanted = names(props)
    for name, node in zip(wanted, nodes, strict=True):
        if node is None or node.get("state") in GONE:
            which = f" {name}" if len(wanted) > 1 else ""
            return f"its TPU VM{which} is {node['state'] if node else 'gone'}"
    return ""
