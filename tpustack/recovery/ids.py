"""The IDs by which Google's provider, or this project's own, finds its resources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from infra.names import Names

# The fields are inputs, and the address of an account, which follows from them. Left out are
# resources that Google names itself (budgets, alerts and their channels), resources that exist only
# in the state, and APIs, which stay enabled.
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
    "gcp:iam/workloadIdentityPool:WorkloadIdentityPool": (
        "projects/{project}/locations/global/workloadIdentityPools/{workloadIdentityPoolId}"
    ),
    "gcp:iam/workloadIdentityPoolProvider:WorkloadIdentityPoolProvider": (
        "projects/{project}/locations/global/workloadIdentityPools/{workloadIdentityPoolId}"
        "/providers/{workloadIdentityPoolProviderId}"
    ),
    "gcp:kms/cryptoKey:CryptoKey": "{keyRing}/cryptoKeys/{name}",
    "gcp:kms/cryptoKeyIAMMember:CryptoKeyIAMMember": "{cryptoKeyId}/{role}/{member}",
    "gcp:kms/keyRing:KeyRing": "projects/{project}/locations/{location}/keyRings/{name}",
    "gcp:projects/iAMCustomRole:IAMCustomRole": "projects/{project}/roles/{roleId}",
    "gcp:projects/iAMMember:IAMMember": "{project}/{role}/{member}",
    "gcp:pubsub/topic:Topic": "projects/{project}/topics/{name}",
    "gcp:pubsub/topicIAMMember:TopicIAMMember": "projects/{project}/topics/{topic}/{role}/{member}",
    "gcp:secretmanager/secretIamMember:SecretIamMember": (
        "projects/{project}/secrets/{secretId}/{role}/{member}"
    ),
    "gcp:serviceaccount/account:Account": "projects/{project}/serviceAccounts/{email}",
    "gcp:serviceaccount/iAMMember:IAMMember": "{serviceAccountId}/{role}/{member}",
    "gcp:storage/bucket:Bucket": "{name}",
    "gcp:storage/bucketIAMMember:BucketIAMMember": "b/{bucket}/{role}/{member}",
    "gcp:storage/bucketObject:BucketObject": "{bucket}-{name}",
    "gcp:tpu/node:Node": "projects/{project}/locations/{zone}/nodes/{name}",
    "gcp:tpu/v2Vm:V2Vm": "projects/{project}/locations/{zone}/nodes/{name}",
    "pulumi-python:dynamic/tpu:QueuedResource": (
        "projects/{project}/locations/{zone}/queuedResources/{name}"
    ),
}

FOUND = _IDS.keys()
"""The types whose ID follows from their inputs."""


def id_of(resource: Mapping[str, Any]) -> str | None:
    """Return the ID of a resource from its inputs; None if it does not follow from them."""
    template = _IDS.get(resource["type"])
    inputs = resource.get("inputs") or {}
    try:
        if "accountId" in inputs:
            inputs = {**inputs, "email": Names.email_of(inputs["accountId"], inputs["project"])}
        return template and template.format_map(inputs)
    except KeyError:
        return None
