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
    """The state as if all of it had come into being; a refresh then drops what has not."""
    resources = deployment.get("resources") or []
    # One that waits for its replacement is deleted already, and stands only for its place.
    known = {each["urn"] for each in resources if not each.get("pendingReplacement")}
    found = {
        create["resource"]["urn"]: create["resource"]
        | {"id": _IDS[create["resource"]["type"]].format_map(create["resource"]["inputs"])}
        for create in _creates(deployment)
        if create["resource"]["type"] in _IDS and create["resource"]["urn"] not in known
    }
    # Others may depend on what is replaced: it keeps its place before them.
    kept = [found.pop(each["urn"], each) for each in resources]
    return {
        **deployment,
        "resources": [*kept, *found.values()],
        "pending_operations": [],
    }


def _creates(deployment: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    operations = deployment.get("pending_operations") or []
    return [operation for operation in operations if operation["type"] == "creating"]
