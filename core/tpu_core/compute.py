"""TPUs that are machines of Compute Engine: where they are, and when one is lost for good.

One host is an instance, a slice a managed group in bulk mode. The agent on a VM and `tpustack
recover` go by the same rules.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from tpu_core.google import Json
from tpu_core.tpu import Phase

COMPUTE: Final = "https://compute.googleapis.com/compute/v1"
INSTANCE: Final = f"{COMPUTE}/projects/{{}}/zones/{{}}/instances/{{}}"
"""The address of an instance, by project, zone and name."""
GROUPS: Final = f"{COMPUTE}/projects/{{}}/zones/{{}}/instanceGroupManagers/{{}}"
"""The address of a managed group, by the same."""
_TEMPLATES = f"{COMPUTE}/projects/{{}}/global/instanceTemplates/{{}}"
# https://docs.cloud.google.com/compute/docs/instances/instance-lifecycle
# Compute Engine stops a preempted VM. https://docs.cloud.google.com/compute/docs/instances/spot
_PHASES: Final[dict[str, Phase]] = {
    "RUNNING": "ready",
    "PENDING": "waiting",
    **dict.fromkeys(("PROVISIONING", "STAGING"), "coming"),
    "REPAIRING": "maintenance",
    **dict.fromkeys(("STOPPING", "PENDING_STOP"), "leaving"),
    **dict.fromkeys(("TERMINATED", "STOPPED"), "lost"),
    **dict.fromkeys(("SUSPENDING", "SUSPENDED"), "stopped"),
    "DEPROVISIONING": "deleting",
}

Ask = Callable[[str, "Json | None"], Json]
"""Sends a POST with a body, a GET without one; returns the answer, or raises OSError."""


def phase_of(status: str) -> Phase:
    """Return what the status of an instance means."""
    return _PHASES.get(status, "unknown")


def settles(group: Mapping[str, Any]) -> bool:
    """Return whether a managed group stays as it is: nothing is done with any of its machines."""
    status = group["status"]
    making = status.get("bulkInstanceOperation", {}).get("inProgress", False)
    return bool(status["isStable"] and not making)


def lacking(ask: Ask, project: str, url: str, group: Mapping[str, Any]) -> str:
    """Return which machines a group lacks for good; empty if none, or if it is being changed.

    Google recreates a slice that failed in capacity that it manages, but none of which a machine
    was preempted or deleted (docs.cloud.google.com/tpu/docs/failure-recovery), and such a slice
    can't be completed. A group that isn't stable is being changed, or will be; it is left alone.
    """
    if not settles(group):
        return ""
    listed = ask(f"{url}/listManagedInstances", {}).get("managedInstances", [])
    # It was stable a moment ago; Google may have begun to bring one back since.
    if any(each.get("currentAction", "NONE") != "NONE" for each in listed):
        return ""
    size = int(group["targetSize"])
    # One that does not exist has no status.
    states = [each["instanceStatus"] for each in listed if "instanceStatus" in each]
    running = [each for each in states if phase_of(each) != "lost"]
    # Google restarts one that is stopped, unless told not to: then a host of a spot slice has
    # turned itself off because another was lost. Of flex-start's, told so too, a person stopped it.
    told = group.get("instanceLifecyclePolicy", {}).get("defaultActionOnFailure") == "DO_NOTHING"
    if told and len(running) < len(states):
        scheduling = template(ask, project, group).get("scheduling", {})
        states = running if scheduling.get("provisioningModel") == "SPOT" else states
    missing = size - len(states)
    return f"without {missing} of its {size} machines" if missing > 0 else ""


def template(ask: Ask, project: str, group: Mapping[str, Any]) -> Json:
    """Return the properties of the machines in a group's template."""
    name = group["instanceTemplate"].rpartition("/")[2]
    found: Json = ask(_TEMPLATES.format(project, name), None)["properties"]
    return found
