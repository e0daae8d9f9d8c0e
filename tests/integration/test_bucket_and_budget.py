"""A bucket with a key and rules of its own, a budget and messages, on the real provider."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import requests

from tpu_infra.components.identity import week
from tpu_infra.deployer import CHANGE, READ, WRITE, permissions_of
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand

from .test_stacks import TPU, Become, settings_of

PROJECT = "tpu-stack-local"
BUCKET: dict[str, Any] = {
    "forceDestroy": True,
    "versioning": True,
    "softDeleteDays": 0,
    "encryption": {},
    "lifecycle": [
        {"noncurrentDays": 30, "newerVersions": 2},
        {"prefix": "jobs/mnist/tensorboard/", "ageDays": 90},
        {"action": "nearline", "prefix": "jobs/", "ageDays": 60},
    ],
}
BUDGET: dict[str, Any] = {
    "amount": 500,
    "scope": "stack",
    "emails": ["team@example.com"],
    "pubsubTopic": "tpu-budget",
}


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


SETTINGS: dict[str, Any] = {
    "bucket": BUCKET,
    "budget": BUDGET,
    "messages": {"emails": ["team@example.com"], "pubsubTopic": "tpu-messages"},
    "limits": {"idleMinutes": 600},
    "network": {"subnetRange": "10.10.0.0/24"},
    "vm": {
        "machineType": "n1-standard-2",
        "capacity": "spot",
        "publicIp": True,
        "keepBootDisk": True,
    },
    "tpu": {**TPU, "dataDisks": [{"name": "data", "sizeGib": 10}]},
}
CHANGED: dict[str, Any] = {
    "bucket": {**BUCKET, "softDeleteDays": 7, "encryption": {"rotationDays": 30}},
    "budget": {**BUDGET, "amount": 600},
    "labels": {"team": "vision"},
    "network": {"subnetRange": "10.10.0.0/20"},
    "vm": {
        **SETTINGS["vm"],
        "machineType": "n1-standard-4",
        "terminationAction": "delete",
        "shielded": {"secureBoot": False},
        "publicIp": False,
    },
    "tpu": {**TPU, "dataDisks": [{"name": "data", "sizeGib": 20}]},
}


def bury_role(google: requests.Session) -> None:
    """Make and delete the role of the limits, as an earlier life of the stack did this week."""
    short = f"tpu_stack_local_limits_{week(datetime.now(timezone.utc))}"
    roles = f"https://iam.googleapis.com/v1/projects/{PROJECT}/roles"
    google.post(roles, json={"roleId": short, "role": {"title": "old"}}).raise_for_status()
    google.delete(f"{roles}/{short}").raise_for_status()


def test_key_rules_and_budget_come_up_as_they_are_set_are_changed_and_go(
    deploy: Callable[..., Stack],
    deployer: Become,
    cloud: LocalCloudCommand,
    google: requests.Session,
) -> None:
    def get(url: str) -> dict[str, Any]:
        headers = {"X-Goog-User-Project": PROJECT}
        answer: dict[str, Any] = google.get(f"https://{url}", headers=headers, timeout=30).json()
        return answer

    permissions = permissions_of(settings_of("local", SETTINGS))
    runner = deployer(permissions)
    bury_role(google)
    before = cloud.status()["resources"]
    engine = deploy(**SETTINGS)
    engine.up(ignore)
    name = engine.outputs()["bucket_name"]
    bucket = get(f"storage.googleapis.com/storage/v1/b/{name}")
    key = bucket["encryption"]["defaultKmsKeyName"]
    assert key.startswith(f"projects/{PROJECT}/locations/us-central1/keyRings/tpu-stack-local-")
    (wheel,) = get(f"storage.googleapis.com/storage/v1/b/{name}/o?prefix=wheels/")["items"]
    assert wheel["kmsKeyName"] == f"{key}/cryptoKeyVersions/1"
    assert bucket["softDeletePolicy"]["retentionDurationSeconds"] == "0"
    assert [rule["action"]["type"] for rule in bucket["lifecycle"]["rule"]] == [
        "Delete",
        "Delete",
        "SetStorageClass",
    ]
    account = get(f"cloudbilling.googleapis.com/v1/projects/{PROJECT}/billingInfo")
    budgets = f"billingbudgets.googleapis.com/v1/{account['billingAccountName']}/budgets"
    (budget,) = get(budgets)["budgets"]
    assert budget["amount"]["specifiedAmount"] == {"units": "500", "currencyCode": "USD"}
    assert len(budget["thresholdRules"]) == 3
    assert budget["notificationsRule"]["pubsubTopic"] == f"projects/{PROJECT}/topics/tpu-budget"
    assert engine.up(ignore).changed == 0
    public = {**CHANGED["vm"], "publicIp": True}
    for more in ({}, {"vm": public}):
        assert "replace" not in deploy(**{**SETTINGS, **CHANGED, **more}).up(ignore).changes
    asked = runner.asked()
    engine.refresh(ignore)
    looked = runner.asked()
    assert looked == sorted(permissions.of_billing_account(READ) + permissions.of_project(READ))
    engine.destroy(ignore)
    asked = sorted({*asked, *looked, *runner.asked()})
    kinds = (READ, WRITE, CHANGE)
    wanted = {*permissions.of_project(*kinds), *permissions.of_billing_account(*kinds)}
    # The role is brought back instead; test_two_engineers.py makes one.
    assert asked == sorted(wanted - {"iam.roles.create"})
    assert cloud.status()["resources"] == before
    # The change had the bucket keep what is deleted for 7 days, and the bucket itself.
    assert cloud.status()["softDeletedBytes"] > 0
    # Google deletes no key, so neither does a destroy: what it can do is to make it useless.
    (version,) = get(f"cloudkms.googleapis.com/v1/{key}/cryptoKeyVersions")["cryptoKeyVersions"]
    assert version["state"] == "DESTROY_SCHEDULED"
