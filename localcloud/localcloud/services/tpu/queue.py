"""The queue: how a queued resource gets from ACCEPTED to ACTIVE, or does not.

Source of the states: cloud.google.com/tpu/docs/queued-resources. A request waits while the zone
has no room, until its time is up; once it is ACTIVE it never queues again by itself.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from math import inf

from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.hooks import cloud_started
from localcloud.core.store import Record
from localcloud.services.tpu import capacity, catalog, hosts, nodes
from localcloud.services.tpu.api import NODE, QUEUED, zone_of

WAITING = ("ACCEPTED", "WAITING_FOR_RESOURCES")
DELETABLE = (*WAITING, "FAILED", "SUSPENDED")
"""States in which a queued resource can be deleted although its nodes may stand."""
# Seconds between two checks for capacity.
_RETRY = {"none": 1.0, "real": 10.0}
_DATA = {
    "ACCEPTED": "acceptedData",
    "PROVISIONING": "provisioningData",
    "ACTIVE": "activeData",
    "FAILED": "failedData",
    "SUSPENDED": "suspendedData",
    "DELETING": "deletingData",
}


def set_state(
    cloud: Cloud,
    name: str,
    state: str,
    *,
    initiator: str = "SERVICE",
    error: ApiError | None = None,
) -> Record | None:
    """Store the state of a queued resource; None when it is gone."""
    with cloud.store.locked():
        record = cloud.store.get(QUEUED, name)
        if record is None:
            return None
        data = {"error": error.rpc_status()} if error else {}
        record["state"] = {"state": state, _DATA[state]: data, "stateInitiator": initiator}
        cloud.store.put(QUEUED, name, record)
        return record


def state_of(record: Record) -> str:
    """Return the state's name."""
    return str(record["state"]["state"])


def step(cloud: Cloud, name: str) -> None:
    """Go on with a queued resource: look for room, then provision."""
    record = cloud.store.get(QUEUED, name)
    if record is None or state_of(record) not in (*WAITING, "PROVISIONING"):
        return
    if state_of(record) in WAITING:
        now = cloud.clock.now()
        if record["_until"] is not None and now >= record["_until"]:
            set_state(cloud, name, "FAILED", error=_expired())
            return
        if now < record["_after"] or not _room(cloud, record):
            look = max(now + _RETRY[cloud.latency_profile], record["_after"])
            cloud.clock.at(min(look, record["_until"] or look), partial(step, cloud, name))
            return
        set_state(cloud, name, "PROVISIONING")
    _later(cloud, "queue.provision", partial(_create_nodes, cloud, name))


@cloud_started
def resume(cloud: Cloud) -> None:
    """Take up again what waited or was being provisioned when the emulator stopped."""
    for name, record in cloud.store.items(QUEUED):
        if state_of(record) in (*WAITING, "PROVISIONING"):
            cloud.clock.at(cloud.clock.now(), partial(step, cloud, name))
        elif state_of(record) == "ACTIVE":
            _plan_end(cloud, name)


def remove_nodes(cloud: Cloud, record: Record) -> None:
    """Delete the nodes of a queued resource that still stand."""
    for node in record["_nodes"]:
        nodes.delete(cloud, node["name"])


def standing(cloud: Cloud, record: Record) -> list[str]:
    """Return the nodes of a queued resource that exist, whatever their state."""
    names = [node["name"] for node in record["_nodes"]]
    return [name for name in names if cloud.store.get(NODE, name) is not None]


def _create_nodes(cloud: Cloud, name: str) -> None:
    with cloud.store.locked():
        record = cloud.store.get(QUEUED, name)
        if record is None or state_of(record) != "PROVISIONING":
            return
        for node in record["_nodes"]:
            if cloud.store.get(NODE, node["name"]) is None:
                cloud.store.put(NODE, node["name"], nodes.new(cloud, node["name"], node))
    _later(cloud, "tpu.create", partial(_activate, cloud, name))


def _activate(cloud: Cloud, name: str) -> None:
    record = cloud.store.get(QUEUED, name)
    if record is None or state_of(record) != "PROVISIONING":
        return
    names = [node["name"] for node in record["_nodes"]]
    with ThreadPoolExecutor(max_workers=min(len(names), 8)) as pool:
        failed = [error for error in pool.map(partial(_create, cloud), names) if error]
    current = cloud.store.get(QUEUED, name)
    if current is None or state_of(current) != "PROVISIONING":
        return
    if failed:
        for node in standing(cloud, record):
            if (cloud.store.get(NODE, node) or {}).get("state") not in nodes.GONE:
                nodes.delete(cloud, node)
        set_state(cloud, name, "FAILED", error=failed[0])
    else:
        set_state(cloud, name, "ACTIVE")
        _plan_end(cloud, name)


def _plan_end(cloud: Cloud, name: str) -> None:
    """Plan the end of a request whose time runs (`flex_start`)."""
    with cloud.store.locked():
        record = cloud.store.get(QUEUED, name)
        if record is None or record.get("_seconds") is None:
            return
        record.setdefault("_ends", cloud.clock.now() + record["_seconds"])
        cloud.store.put(QUEUED, name, record)
    cloud.clock.at(record["_ends"], partial(_end, cloud, name))


def _end(cloud: Cloud, name: str) -> None:
    record = cloud.store.get(QUEUED, name)
    # Another request may have got the name since.
    if record and state_of(record) == "ACTIVE" and record.get("_ends", inf) <= cloud.clock.now():
        set_state(cloud, name, "SUSPENDED")
        remove_nodes(cloud, record)


def _create(cloud: Cloud, name: str) -> ApiError | None:
    try:
        if (cloud.store.get(NODE, name) or {}).get("state") != "READY":
            nodes.create(cloud, name)
    except ApiError as error:
        return error
    return None


@nodes.preempted
def _preempted(cloud: Cloud, node: Record) -> None:
    record = cloud.store.get(QUEUED, node.get("queuedResource", ""))
    if record is None or state_of(record) not in ("ACTIVE", "PROVISIONING"):
        return
    set_state(cloud, record["name"], "SUSPENDED")
    for name in standing(cloud, record):
        other = cloud.store.get(NODE, name) or {}
        if name != node["name"] and other.get("state") == "READY":
            hosts.halt(cloud, other)
            nodes.set_state(cloud, name, "TERMINATED")


@nodes.deleted
def _node_deleted(cloud: Cloud, node: Record) -> None:
    record = cloud.store.get(QUEUED, node.get("queuedResource", ""))
    if record is not None and state_of(record) == "ACTIVE" and not standing(cloud, record):
        set_state(cloud, record["name"], "SUSPENDED", initiator="USER")


def _room(cloud: Cloud, record: Record) -> bool:
    zone = zone_of(record["name"])
    if not all(
        capacity.in_stock(cloud, zone, node["acceleratorType"]) for node in record["_nodes"]
    ):
        return False
    needed = sum(catalog.accelerators()[n["acceleratorType"]].hosts for n in record["_nodes"])
    return capacity.free_hosts(cloud) >= needed


def _later(cloud: Cloud, what: str, action: partial[None]) -> None:
    seconds = cloud.seconds(what)
    if seconds:
        cloud.clock.at(cloud.clock.now() + seconds, action)
    else:
        action()


def _expired() -> ApiError:
    return ApiError(
        400,
        "The queued resource was not provisioned within its queueing policy's interval.",
        status="DEADLINE_EXCEEDED",
    )
