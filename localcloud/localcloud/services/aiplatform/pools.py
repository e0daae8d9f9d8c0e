"""The worker pool of a job with a TPU: which there are, where, and what they count against.

A slice of several hosts is one replica, too: its machines follow from machine type and topology.

Source: docs.cloud.google.com/gemini-enterprise-agent-platform/machine-learning/training/
configure-compute#tpu. The metrics of quotas are those in users' reports (`…_tpu_v2`) and in
Google's own notebooks (`…_tpu_v3`, `…_tpu_v5e`); that of v6e is inferred, as are those of spot TPUs
from spot GPUs' (`…_preemptible_nvidia_t4_gpus`). Spot: …/machine-learning/predictions/use-spot-vms.
"""

from __future__ import annotations

from dataclasses import dataclass

from localcloud.core.call import Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.aiplatform.api import JOB
from localcloud.services.tpu import catalog

_CLASSIC = {"TPU_V2": "v2", "TPU_V3": "v3"}
_MACHINES = {
    **{f"ct5lp-hightpu-{chips}t": "v5litepod" for chips in (1, 4, 8)},
    **{f"ct6e-standard-{chips}t": "v6e" for chips in (1, 4, 8)},
}
_STANDARD, _SPOT = "STANDARD", "SPOT"
_UNSPECIFIED = "STRATEGY_UNSPECIFIED"
# The machine that slices of several hosts are made of.
_OF_SLICES = "ct5lp-hightpu-4t"
_METRICS = {"v2": "tpu_v2", "v3": "tpu_v3", "v5litepod": "tpu_v5e", "v6e": "tpu_v6e"}
_ENDED = ("JOB_STATE_SUCCEEDED", "JOB_STATE_FAILED", "JOB_STATE_CANCELLED", "JOB_STATE_EXPIRED")


@dataclass(frozen=True)
class Pool:
    """A TPU as Cloud TPU names it, the machine type of its hosts, and how many these are."""

    accelerator: catalog.Accelerator
    machine_type: str
    hosts: int = 1
    spot: bool = False

    @property
    def metric(self) -> str:
        """The quota that it counts against."""
        spot = "preemptible_" if self.spot else ""
        return f"custom_model_training_{spot}{_METRICS[self.accelerator.generation]}"


def pool_of(spec: Json) -> Pool:
    """Return the TPU of a job's only worker pool.

    Raises:
        ApiError: 400 for what is no TPU of Vertex AI's, 501 for machines without one.
    """
    pools = spec.get("workerPoolSpecs", [])
    if not pools:
        raise invalid("List of found errors: 1.Field: job_spec.worker_pool_specs; Message: empty.")
    machine = pools[0].get("machineSpec", {})
    name = machine.get("machineType", "")
    if name != "cloud-tpu" and name not in _MACHINES:
        raise ApiError(501, f"the local cloud runs custom jobs on TPUs, not on {name!r}")
    if len(pools) > 1 or str(pools[0].get("replicaCount", "1")) != "1":
        raise invalid("A job with TPUs must have a single worker pool with one replica.")
    spot = _is_spot(spec)
    if name != "cloud-tpu":
        pool = _of_topology(machine, name, spot=spot)
    elif (found := _classic(machine)).hosts > 1:
        raise ApiError(501, f"the local cloud runs no custom job on {found.name}")
    else:
        pool = Pool(found, name, spot=spot)
    if pool.spot and pool.hosts > 1:
        raise invalid("Spot VMs are not supported with TPU Pods.")
    return pool


def _is_spot(spec: Json) -> bool:
    strategy = spec.get("scheduling", {}).get("strategy", _STANDARD)
    if strategy not in (_STANDARD, _SPOT, _UNSPECIFIED):
        raise ApiError(501, f"the local cloud gives no capacity by the strategy {strategy}")
    return bool(strategy == _SPOT)


def _classic(machine: Json) -> catalog.Accelerator:
    kind, count = machine.get("acceleratorType"), machine.get("acceleratorCount")
    found = catalog.accelerators().get(f"{_CLASSIC.get(str(kind))}-{count}")
    if found is None:
        raise invalid(f"Machine type cloud-tpu does not support {count} accelerators of {kind}.")
    return found


def _of_topology(machine: Json, name: str, *, spot: bool) -> Pool:
    topology = machine.get("tpuTopology", "")
    chips = int(name.rpartition("-")[2].rstrip("t"))
    for found in catalog.accelerators().values():
        fits = found.generation == _MACHINES[name] and found.topology == topology
        hosts = max(1, found.size // chips)
        if fits and found.size >= chips and (hosts == 1 or name == _OF_SLICES):
            return Pool(found, name, hosts, spot)
    raise invalid(f"Machine type {name} does not support the TPU topology {topology!r}.")


def require(cloud: Cloud, project: str, region: str, pool: Pool) -> None:
    """Refuse a pool that the region lacks or the quota does not allow.

    Raises:
        ApiError: 400, or 429 naming the quota.
    """
    if not zones(region, pool):
        raise invalid(
            f"Machine type {pool.machine_type} with TPU {pool.accelerator.name} is not supported "
            f"in region {region}."
        )
    limit = cloud.setting("quota").get(pool.metric)
    if limit is not None and _used(cloud, project, region, pool.metric) + _size(pool) > limit:
        raise ApiError(
            429,
            "The following quota metrics exceed quota limits: "
            f"aiplatform.googleapis.com/{pool.metric}",
        )


def zones(region: str, pool: Pool) -> list[str]:
    """Return the zones of a region that have the TPU."""
    return [zone for zone in pool.accelerator.zones if zone.rpartition("-")[0] == region]


def in_stock(cloud: Cloud, region: str, pool: Pool) -> bool:
    """Return whether any zone of a region has room for it."""
    out = cloud.setting("stockout")
    kinds = {pool.accelerator.name, "*"}
    return any(kinds.isdisjoint(out.get(zone, ())) for zone in zones(region, pool))


def metrics() -> set[str]:
    """Return the quotas that there are."""
    kinds = ("", "preemptible_")
    return {f"custom_model_training_{kind}{name}" for name in _METRICS.values() for kind in kinds}


def _size(pool: Pool) -> int:
    return pool.accelerator.size


def _used(cloud: Cloud, project: str, region: str, metric: str) -> int:
    held: list[Record] = [
        record
        for _, record in cloud.store.items(JOB, f"projects/{project}/locations/{region}/")
        if record["state"] not in _ENDED
    ]
    pools = [pool_of(record["jobSpec"]) for record in held]
    return sum(_size(pool) for pool in pools if pool.metric == metric)
