"""What users have made in the cloud, counted by kind."""

from __future__ import annotations

from collections import Counter

from localcloud.core.access import CUSTOM_ROLE
from localcloud.core.accounts import ACCOUNT
from localcloud.core.cloud import Cloud
from localcloud.services.aiplatform.api import JOB
from localcloud.services.billing import BUDGET
from localcloud.services.compute.api import STORE as COMPUTE
from localcloud.services.iam.federation import POOL, PROVIDER
from localcloud.services.kms.api import VERSION as KEY_VERSION
from localcloud.services.monitoring import ALERT_POLICY, CHANNEL
from localcloud.services.pubsub import TOPIC
from localcloud.services.secretmanager import SECRET
from localcloud.services.storage.records import BUCKET, DELETED_BUCKET, deleted_kind, live_kind
from localcloud.services.tpu.api import NODE, QUEUED

_BY_KIND = {
    BUCKET: "buckets",
    BUDGET: "budgets",
    CHANNEL: "notification channels",
    ALERT_POLICY: "alerting policies",
    TOPIC: "topics",
    SECRET: "secrets",
    NODE: "tpu nodes",
    QUEUED: "tpu queued resources",
}
# Deleted ones can be brought back for a while.
_KEPT_FOR_A_WHILE = {
    CUSTOM_ROLE: "roles",
    POOL: "identity pools",
    PROVIDER: "identity providers",
}
_OWN_ACCOUNTS = ".iam.gserviceaccount.com"


def names(cloud: Cloud) -> dict[str, list[str]]:
    """Return full names by kind; what Google itself makes with a project or an API is left out."""
    found: dict[str, list[str]] = {}
    for kind, shown in _BY_KIND.items():
        for key in cloud.store.keys(kind):
            found.setdefault(shown, []).append(key)
    for bucket in cloud.store.keys(BUCKET):
        for key in cloud.store.keys(live_kind(bucket)):
            found.setdefault("objects", []).append(f"{bucket}/{key}")
    for key in cloud.store.keys(ACCOUNT):
        if not _is_googles_account(key):
            found.setdefault("service accounts", []).append(key)
    for kind, shown in _KEPT_FOR_A_WHILE.items():
        for key, record in cloud.store.items(kind):
            if record.get("state") != "DELETED" and not record.get("deleted"):
                found.setdefault(shown, []).append(key)
    for key, version in cloud.store.items(KEY_VERSION):
        # Rings and keys can't be deleted, not even on Google: what costs is a version in use.
        if version["state"] in ("ENABLED", "DISABLED"):
            found.setdefault("kms key versions", []).append(key)
    for key, job in cloud.store.items(JOB):
        # One that has ended stays in the list, and costs nothing.
        if "endTime" not in job:
            found.setdefault("custom jobs", []).append(key)
    for key in cloud.store.keys(COMPUTE):
        if not _comes_with_compute(key):
            found.setdefault(key.split("/")[-2], []).append(key)
    return dict(sorted(found.items()))


def counts(cloud: Cloud) -> dict[str, int]:
    """Return how many resources of each kind there are; kinds without any are left out."""
    return dict(Counter({kind: len(keys) for kind, keys in names(cloud).items()}))


def soft_deleted_bytes(cloud: Cloud) -> int:
    """Return how much Google still bills of what was deleted or replaced."""
    buckets = [*cloud.store.keys(BUCKET), *cloud.store.keys(DELETED_BUCKET)]
    kept = (record for bucket in buckets for _, record in cloud.store.items(deleted_kind(bucket)))
    return sum(record["size"] for record in kept)


def _is_googles_account(key: str) -> bool:
    _, project, _, email = key.split("/")
    return not email.endswith(f"@{project}{_OWN_ACCOUNTS}")


def _comes_with_compute(key: str) -> bool:
    *_, kind, name = key.split("/")
    if kind in ("networks", "subnetworks"):
        return name == "default"
    # A network's routes come and go with it.
    return kind == "routes" or (kind == "firewalls" and name.startswith("default-allow-"))
