"""Stock-outs and quotas of instances, as switched by settings of the local cloud.

The setting `compute.stockout` is `{"zones": […]}` (`*` for all), `compute.quota` is
`{"CPUS": {region: limit}}`.
"""

from __future__ import annotations

from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.store import Record
from localcloud.services.compute import catalog
from localcloud.services.compute.api import STORE
from localcloud.services.compute.links import last, path_from


def require(cloud: Cloud, record: Record) -> None:
    """Refuse to start an instance that finds no room.

    Raises:
        ApiError: 403 when the CPU quota of the region is used up, 503 when the zone is.
    """
    zone = last(record["zone"])
    _require_quota(cloud, record, catalog.region_of(zone))
    zones = cloud.setting("compute.stockout").get("zones", [])
    if zone in zones or "*" in zones:
        where = path_from(record["zone"])
        raise ApiError(
            503,
            f"The zone '{where}' does not have enough resources available to fulfill the request. "
            " Try a different zone, or try again later.",
            reason="ZONE_RESOURCE_POOL_EXHAUSTED",
        )


def _require_quota(cloud: Cloud, record: Record, region: str) -> None:
    limits = cloud.setting("compute.quota").get("CPUS", {})
    if region not in limits:
        return
    project = path_from(record["selfLink"]).split("/")[1]
    wanted = _cpus(record)
    for path, other in cloud.store.items(STORE, f"projects/{project}/zones/{region}-"):
        counts = "/instances/" in path and other["status"] not in ("TERMINATED", "STOPPED")
        if counts and other["selfLink"] != record["selfLink"]:
            wanted += _cpus(other)
    if wanted > limits[region]:
        raise ApiError(
            403,
            f"Quota 'CPUS' exceeded.  Limit: {limits[region]:.1f} in region {region}.",
            reason="QUOTA_EXCEEDED",
        )


def _cpus(record: Record) -> int:
    return catalog.machine_type(last(record["machineType"]), last(record["zone"])).vcpus
