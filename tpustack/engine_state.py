"""What a killed engine left half done in a stack's state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# By what the provider finds a resource again whose creation it cannot repeat: Google answers that
# the name is taken. All others are created anew without harm (APIs, grants, objects, accounts).
_IDS: Mapping[str, str] = {
    "gcp:compute/disk:Disk": "projects/{project}/zones/{zone}/disks/{name}",
    "gcp:compute/firewall:Firewall": "projects/{project}/global/firewalls/{name}",
    "gcp:compute/healthCheck:HealthCheck": "projects/{project}/global/healthChecks/{name}",
    "gcp:compute/instance:Instance": "projects/{project}/zones/{zone}/instances/{name}",
    "gcp:compute/instanceGroupManager:InstanceGroupManager": (
        "projects/{project}/zones/{zone}/instanceGroupManagers/{name}"
    ),
    "gcp:compute/instanceTemplate:InstanceTemplate": (
        "projects/{project}/global/instanceTemplates/{name}"
    ),
    "gcp:compute/network:Network": "projects/{project}/global/networks/{name}",
    "gcp:compute/perInstanceConfig:PerInstanceConfig": (
        "{project}/{zone}/{instanceGroupManager}/{name}"
    ),
    "gcp:compute/router:Router": "projects/{project}/regions/{region}/routers/{name}",
    "gcp:compute/routerNat:RouterNat": "{project}/{region}/{router}/{name}",
    "gcp:compute/subnetwork:Subnetwork": "projects/{project}/regions/{region}/subnetworks/{name}",
    "gcp:storage/bucket:Bucket": "{project}/{name}",
    "gcp:tpu/node:Node": "projects/{project}/locations/{zone}/nodes/{name}",
    "gcp:tpu/v2Vm:V2Vm": "projects/{project}/locations/{zone}/nodes/{name}",
}


def being_created(deployment: Mapping[str, Any]) -> list[str]:
    """The URNs of what the engine was creating when it was killed."""
    return [operation["resource"]["urn"] for operation in _creates(deployment)]


def with_what_was_being_created(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """The state as if all of it had come into being; a refresh then drops what has not.

    The operations stay in it until `settled`, so that this can be done again if it is interrupted.
    """
    found = {
        create["resource"]["urn"]: create["resource"]
        # The outputs are what the provider goes by when it deletes before any refresh.
        | {"id": _id_of(create["resource"]), "outputs": create["resource"]["inputs"]}
        for create in _creates(deployment)
        if create["resource"]["type"] in _IDS
    }
    resources: list[Mapping[str, Any]] = []
    for each in deployment.get("resources") or []:
        # Others may depend on what is replaced: the new one takes its place before them.
        new = found.pop(each["urn"], None)
        if new is None:
            resources.append(each)
        elif each.get("pendingReplacement"):
            # It is deleted already, and stands only for its place.
            resources.append(new)
        elif _id_of(each) == new["id"]:
            resources.append(each)
        else:
            resources += [new, {**each, "delete": True}]
    return {**deployment, "resources": [*resources, *found.values()]}


def settled(deployment: Mapping[str, Any]) -> dict[str, Any]:
    """The refreshed state without the operations; what was not replaced after all stays."""
    resources = deployment.get("resources") or []
    alive = {each["urn"] for each in resources if not each.get("delete")}
    begun = set(being_created(deployment))
    kept = [
        {key: value for key, value in each.items() if key != "delete"}
        if each["urn"] in begun - alive
        else each
        for each in resources
    ]
    return {**deployment, "resources": kept, "pending_operations": []}


def _id_of(resource: Mapping[str, Any]) -> str:
    return _IDS[resource["type"]].format_map(resource["inputs"])


def _creates(deployment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    operations = deployment.get("pending_operations") or []
    return [operation for operation in operations if operation["type"] == "creating"]
