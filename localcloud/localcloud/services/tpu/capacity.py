"""Stock-outs, quotas and the refusal of classic nodes, as switched by settings.

Settings are records of the store's kind `setting`:
`stockout` {zone or `*`: [TPU types or `*`]}, `quota` {metric: limit in cores or chips per zone},
`deny-tpu-nodes` {"on": false} for a project on Google's list, `reservations` {zone: [TPU types]}
(without it every request finds its reservation), `tpu-hosts` {"limit": n}: how many hosts may run.
"""

from __future__ import annotations

from localcloud.core import projects
from localcloud.core.cloud import SETTING, Cloud
from localcloud.core.errors import ApiError, failed_precondition
from localcloud.core.store import Record
from localcloud.services.tpu import catalog
from localcloud.services.tpu.api import NODE, QUEUED, zone_of

# A worker takes about 400 MiB; a machine that runs the local cloud has room for a few of them.
_HOSTS = 16


def preemptible(record: Record) -> bool:
    """Return whether a node may be preempted."""
    scheduling = record.get("schedulingConfig", {})
    spot = scheduling.get("spot") or scheduling.get("provisioningModel") == "SPOT"
    return bool(scheduling.get("preemptible") or spot)


def require_nodes_allowed(cloud: Cloud) -> None:
    """Refuse a classic node, as Google does since 2025-04-15 to projects not on its list."""
    if cloud.setting("deny-tpu-nodes").get("on", True):
        raise ApiError(
            400,
            "Your request to provision TPU Node has been denied. Please migrate to TPU VM "
            "Architecture or contact Cloud TPU team to gain TPU Node access.",
        )


def require_quota(cloud: Cloud, project: str, zone: str, wanted: list[Record]) -> None:
    """Refuse nodes that would exceed a quota; 429 naming the quota."""
    limits = cloud.setting("quota")
    needed: dict[str, int] = {}
    for record in wanted:
        metric, amount = _held(record)
        needed[metric] = needed.get(metric, 0) + amount
    for metric, amount in needed.items():
        limit = limits.get(metric)
        if limit is not None and _used(cloud, project, zone, metric) + amount > limit:
            raise _quota_exceeded(metric, limit, project, zone)


def in_stock(cloud: Cloud, zone: str, accelerator: str) -> bool:
    """Return whether the zone has room for one more slice of this type."""
    stockout = cloud.setting("stockout")
    out = [*stockout.get(zone, ()), *stockout.get("*", ())]
    return accelerator not in out and "*" not in out


def require_stock(cloud: Cloud, record: Record) -> None:
    """Refuse a slice that finds no room; 429 (code 8 in an operation) naming the zone."""
    zone = zone_of(record["name"])
    if not in_stock(cloud, zone, record["acceleratorType"]):
        raise stocked_out(zone)
    if record.get("schedulingConfig", {}).get("reserved"):
        _require_reservation(cloud, zone, record["acceleratorType"])
    hosts = catalog.accelerators()[record["acceleratorType"]].hosts
    free = free_hosts(cloud, besides=record["name"])
    if hosts > free:
        own = f"the local cloud has room for {free} more TPU hosts (setting tpu-hosts)"
        raise ApiError(429, f"{stocked_out(zone).message} [{own}]")


def _require_reservation(cloud: Cloud, zone: str, accelerator: str) -> None:
    reserved = cloud.store.get(SETTING, "reservations")
    if reserved is not None and accelerator not in reserved.get(zone, []):
        raise failed_precondition(
            "Insufficient reserved capacity. Contact customer support to increase your reservation."
        )


def free_hosts(cloud: Cloud, *, besides: str = "") -> int:
    """Return how many more hosts the local cloud would run, not counting the node `besides`."""
    limit = int(cloud.setting("tpu-hosts").get("limit", _HOSTS))
    running = sum(
        catalog.accelerators()[other["acceleratorType"]].hosts
        for name, other in cloud.store.items(NODE)
        if name != besides and other["state"] in ("CREATING", "READY", "STARTING")
    )
    return limit - running


def stocked_out(zone: str) -> ApiError:
    """Return what Google answers when a zone has no room."""
    return ApiError(
        429,
        f'There is no more capacity in the zone "{zone}"; you can try in another zone where Cloud '
        "TPU Nodes are offered (see https://cloud.google.com/tpu/docs/regions)",
    )


def _used(cloud: Cloud, project: str, zone: str, metric: str) -> int:
    prefix = f"projects/{project}/locations/{zone}/"
    # Every node counts until it is deleted, also a preempted or stopped one.
    held = [record for _, record in cloud.store.items(NODE, prefix)]
    for _, queued in cloud.store.items(QUEUED, prefix):
        # So does what a queued resource asks for, also after it failed or was suspended.
        standing = {record["name"] for record in held}
        held += [node for node in queued["_nodes"] if node["name"] not in standing]
    return sum(amount for counted, amount in map(_held, held) if counted == metric)


def _held(record: Record) -> tuple[str, int]:
    """Return the quota that a node counts against, and with how much."""
    accelerator = catalog.accelerators()[record["acceleratorType"]]
    takes_spot = preemptible(record) or bool(record.get("_flexStart"))
    return accelerator.metric(preemptible=takes_spot), accelerator.size


def _quota_exceeded(metric: str, limit: int, project: str, zone: str) -> ApiError:
    """Return what Google answers (in a user's notes of 2025-08-25)."""
    violation = {
        "subject": f"project:{projects.number(project)}",
        "description": f"Quota '{metric}' exhausted. Limit {limit} in zone {zone}",
    }
    return ApiError(
        429,
        f"Quota limit '{metric}' has been exceeded. Limit: {limit} in zone {zone}.",
        details=[
            {"@type": "type.googleapis.com/google.rpc.QuotaFailure", "violations": [violation]}
        ],
    )
