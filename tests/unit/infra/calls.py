"""What the provider asks of Google for some settings: the creations of the machines' surroundings.

Only what Google judges the settings by; the machines are in `machine_calls`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tpu_infra.checks.context import Context
from tpu_infra.checks.network import subnet_range
from tpu_infra.names import MARK
from tpu_infra.settings import BudgetScope, LifecycleAction, LifecycleRule, StackSettings

from .generate_values import BILLING_ACCOUNT, Json

Call = tuple[str, str, dict[str, str], Json]
"""(host, path, query, body) of a POST; a topic is PUT."""
_DAY = 86400
ANY_MARK = "0f1e2d3c"
"""The stack's mark; Google does not look at what it says."""


def labels_of(settings: StackSettings) -> Json:
    """The labels of every resource."""
    own = {"managed-by": "pulumi", "tpu-stack": "test", "goog-pulumi-provisioned": "true"}
    return {**own, MARK: ANY_MARK, **settings.labels}


def email_of(settings: StackSettings, context: Context) -> str:
    """The stack's account."""
    return context.names.email


def network_of(settings: StackSettings, context: Context) -> tuple[str, str]:
    """The paths of the network and the subnetwork that the machines are in."""
    network = settings.network
    name = context.names.network if network.create else network.name or "default"
    within = context.names.network if network.create else network.subnetwork or name
    project = f"projects/{network.project or settings.project}"
    return (
        f"{project}/global/networks/{name}",
        f"{project}/regions/{settings.region}/subnetworks/{within}",
    )


def surroundings(settings: StackSettings, context: Context) -> Iterator[Call]:
    """Everything but the machines, the same of most stacks first."""
    names, iam = context.names, f"/v1/projects/{settings.project}"
    account = {"accountId": names.account, "serviceAccount": {}}
    yield "iam.googleapis.com", f"{iam}/serviceAccounts", {}, account
    yield from _network(settings, context)
    yield from _bucket(settings, context)
    if settings.keeps_limits:
        role = {"roleId": names.limits_role, "role": {"includedPermissions": ["tpu.nodes.stop"]}}
        yield "iam.googleapis.com", f"{iam}/roles", {}, role
    yield from _budget(settings, context)


def _network(settings: StackSettings, context: Context) -> Iterator[Call]:
    if not settings.network.create:
        return
    names, compute = context.names, f"/compute/beta/projects/{settings.project}"
    network, _ = network_of(settings, context)
    body: Json = {"name": names.network, "autoCreateSubnetworks": False}
    yield "compute.googleapis.com", f"{compute}/global/networks", {}, body
    asked = settings.network.subnet_range or str(subnet_range(settings, context))
    body = {"name": names.network, "network": network, "ipCidrRange": asked}
    subnetworks = f"{compute}/regions/{settings.region}/subnetworks"
    yield "compute.googleapis.com", subnetworks, {}, body


def _bucket(settings: StackSettings, context: Context) -> Iterator[Call]:
    bucket, project = settings.bucket, settings.project
    if not bucket.create:
        return
    wanted: Json = {
        "name": context.names.bucket,
        "location": settings.region.upper(),
        "labels": labels_of(settings),
        "versioning": {"enabled": bucket.versioning},
        "lifecycle": {"rule": [_rule(rule) for rule in bucket.lifecycle]},
    }
    if bucket.soft_delete_days is not None:
        seconds = str(bucket.soft_delete_days * _DAY)
        wanted["softDeletePolicy"] = {"retentionDurationSeconds": seconds}
    if bucket.encryption:
        key = bucket.encryption.key
        if not key:
            ring = f"projects/{project}/locations/{settings.region}/keyRings/{context.names.prefix}"
            key = f"{ring}/cryptoKeys/bucket"
            yield from key_calls(key, bucket.encryption.rotation_days or 90)
        yield from key_grant(key)
        wanted["encryption"] = {"defaultKmsKeyName": key}
    yield "storage.googleapis.com", "/storage/v1/b", {"project": project}, wanted


def _rule(rule: LifecycleRule) -> Json:
    delete = rule.action is LifecycleAction.DELETE
    asked: Json = {
        "age": rule.age_days,
        "daysSinceNoncurrentTime": rule.noncurrent_days,
        "numNewerVersions": rule.newer_versions,
        "matchesPrefix": [rule.prefix] if rule.prefix else None,
        "isLive": False if rule.noncurrent_days or rule.newer_versions else None,
    }
    action = {"type": "Delete"}
    if not delete:
        action = {"type": "SetStorageClass", "storageClass": rule.action.value.upper()}
    return {"action": action, "condition": {k: v for k, v in asked.items() if v is not None}}


def key_calls(key: str, rotation_days: int) -> Iterator[Call]:
    """A key ring with a key."""
    ring, _, name = key.partition("/cryptoKeys/")
    place, _, ring_id = ring.partition("/keyRings/")
    host, rotates = "cloudkms.googleapis.com", {"nextRotationTime": "2099-01-01T00:00:00Z"}
    yield host, f"/v1/{place}/keyRings", {"keyRingId": ring_id}, {}
    body = {"purpose": "ENCRYPT_DECRYPT", "rotationPeriod": f"{rotation_days * _DAY}s", **rotates}
    yield host, f"/v1/{ring}/cryptoKeys", {"cryptoKeyId": name}, body


def key_grant(key: str) -> Iterator[Call]:
    """Cloud Storage's account may use a key; {number} stands for that of the project."""
    member = "serviceAccount:service-{number}@gs-project-accounts.iam.gserviceaccount.com"
    role = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
    body: Json = {"policy": {"bindings": [{"role": role, "members": [member]}]}}
    yield "cloudkms.googleapis.com", f"/v1/{key}:setIamPolicy", {}, body


def _budget(settings: StackSettings, context: Context) -> Iterator[Call]:
    budget, project = settings.budget, f"projects/{settings.project}"
    if budget is None:
        return
    for address in budget.emails:
        body: Json = {"type": "email", "labels": {"email_address": address}}
        yield "monitoring.googleapis.com", f"/v3/{project}/notificationChannels", {}, body
    topic = budget.pubsub_topic
    if budget.own_topic:
        topic = f"{project}/topics/{budget.own_topic}"
        yield "pubsub.googleapis.com", f"/v1/{topic}", {}, {"labels": labels_of(settings)}
    told: Json = {"pubsubTopic": topic} if topic else {}
    if budget.emails:
        # Each call names its channel, as far as Google looks at them here: by their number.
        told["monitoringNotificationChannels"] = ["{channel}"] * len(set(budget.emails))
    money: dict[str, Any] = {"units": str(budget.amount)} if budget.amount else {}
    stack = {"labels": {"tpu-stack": ["test"]}}
    body = {
        "amount": {"specifiedAmount": money},
        "budgetFilter": {
            "projects": [project],
            **(stack if budget.scope is BudgetScope.STACK else {}),
        },
        "thresholdRules": [
            {"thresholdPercent": percent / 100, "spendBasis": "CURRENT_SPEND"}
            for percent in budget.thresholds
        ],
        "notificationsRule": told,
    }
    account = budget.billing_account or BILLING_ACCOUNT
    path = f"/v1/billingAccounts/{account}/budgets"
    yield "billingbudgets.googleapis.com", path, {}, body
