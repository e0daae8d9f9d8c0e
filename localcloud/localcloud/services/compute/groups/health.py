"""Auto-healing: a group asks its instances how they are, and makes those anew that don't answer."""

from __future__ import annotations

from functools import partial

from localcloud.core.cloud import Cloud, cloud_started
from localcloud.core.store import Record
from localcloud.services.compute import health_checks
from localcloud.services.compute.api import STORE
from localcloud.services.compute.groups import actions
from localcloud.services.compute.groups.records import COLLECTION, instance_path, note, save
from localcloud.services.compute.links import path_from


def watch(cloud: Cloud, group: str) -> None:
    """Begin to check a group by its current policy; an earlier chain of checks ends."""
    with cloud.store.locked():
        record = cloud.store.get(STORE, group)
        if record is None:
            return
        record["_watch"] = record.get("_watch", 0) + 1
        save(cloud, group, record)
    _next(cloud, group, record)


@cloud_started
def _resume(cloud: Cloud) -> None:
    for path, _ in cloud.store.items(STORE, "projects/"):
        if f"/{COLLECTION}/" in path:
            watch(cloud, path)


def _next(cloud: Cloud, group: str, record: Record) -> None:
    check = _check(cloud, record)
    if check is not None:
        when = cloud.clock.now() + check["checkIntervalSec"]
        cloud.clock.at(when, partial(_round, cloud, group, record["_watch"]))


def _check(cloud: Cloud, record: Record) -> Record | None:
    policies = record.get("autoHealingPolicies", [])
    return cloud.store.get(STORE, path_from(policies[0]["healthCheck"])) if policies else None


def _round(cloud: Cloud, group: str, number: int) -> None:
    """Ask every instance of the group once."""
    record = cloud.store.get(STORE, group)
    if record is None or record.get("_deleting") or record["_watch"] != number:
        return
    check = _check(cloud, record)
    if check is None:
        return
    for name, known in record["_members"].items():
        if known["action"] == "NONE":
            _ask(cloud, group, record, check, name)
    _next(cloud, group, record)


def _ask(cloud: Cloud, group: str, record: Record, check: Record, name: str) -> None:
    known = record["_members"][name]
    answer = health_checks.healthy(cloud, check, instance_path(group, name))
    found = "HEALTHY" if answer else "UNHEALTHY"
    streak = known["streak"] + 1 if found != known["health"] else 0
    enough = check["healthyThreshold" if answer else "unhealthyThreshold"]
    if found != known["health"] and streak >= enough:
        known |= {"health": found, "streak": 0}
    else:
        known["streak"] = streak
    note(cloud, group, name, health=known["health"], streak=known["streak"])
    policy = record["autoHealingPolicies"][0]
    young = cloud.clock.now() < known["since"] + policy.get("initialDelaySec", 0)
    failing = known["health"] == "UNHEALTHY" and not young
    if failing and record["instanceLifecyclePolicy"]["onFailedHealthCheck"] != "DO_NOTHING":
        actions.begin(cloud, group, name, "RECREATING")
