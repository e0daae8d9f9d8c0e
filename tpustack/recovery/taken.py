"""Tells which TPUs and VMs of a stack Google has taken away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tpustack.cloud.google import Google, NotFound
from tpustack.cloud.tpu import Nodes, zones_of

_INSTANCE = "https://compute.googleapis.com/compute/v1/projects/{}/zones/{}/instances/{}"
_VM = "gcp:compute/instance:Instance"
_GONE = ("PREEMPTED", "TERMINATED")
# The forms of a TPU, and what waits for one out of the queue.
_TYPES = (
    "gcp:tpu/v2Vm:V2Vm",
    "gcp:tpu/node:Node",
    "pulumi-python:dynamic/tpu:QueuedResource",
    "pulumi-python:dynamic/tpu:QueuedNode",
)


def lost(google: Google, outputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the TPUs of a stack that do not serve any more, each with its state.

    Args:
        google: the APIs.
        outputs: the stack's, as infra/outputs.py names them.

    Raises:
        TpustackError: when nobody may look, with the API's own message.
    """
    found = {}
    nodes, zones = Nodes(google, outputs["project"]), zones_of(outputs)
    for name in outputs["tpu_names"]:
        there = nodes.find(zones, name)
        state = there[1].get("state", "") if there else "gone"
        if state in (*_GONE, "gone"):
            found[name] = state
    return found


def lost_vms(google: Google, resources: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the URNs of the VMs in a stack's state that Google has taken away, with their states.

    A group brings its VM back by itself, and a VM that Google takes from nobody was stopped by
    somebody who meant it. Raises TpustackError when nobody may look.
    """
    found = {}
    for resource in resources:
        vm = resource.get("outputs") or {}
        if resource["type"] != _VM or not (vm.get("scheduling") or {}).get("preemptible"):
            continue
        try:
            state = google.get(_INSTANCE.format(vm["project"], vm["zone"], vm["name"]))["status"]
        except NotFound:
            state = "gone"
        if state in (*_GONE, "gone"):
            found[resource["urn"]] = state
    return found


def targets(resources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the URNs in a stack's state that are its TPUs."""
    return [resource["urn"] for resource in resources if resource["type"] in _TYPES]
