"""Questions about quotas: what the project may use of this TPU and of vCPUs, and what is left."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from infra.apis import COMPUTE_API, TPU_API
from infra.catalog.entries import Accelerator
from infra.settings.machines import Capacity, VmCapacity
from tpustack.cloud.google import NotFound
from tpustack.live.finding import OK, UNKNOWN, WARNING, WRONG, Asked, Finding
from tpustack.live.project import is_enabled, not_enabled

_METRICS = (
    "https://serviceusage.googleapis.com/v1beta1/projects/{}/services/tpu.googleapis.com/"
    "consumerQuotaMetrics"
)
_NODES = "https://tpu.googleapis.com/v2/projects/{}/locations/{}/nodes"
_REGION = "https://compute.googleapis.com/compute/v1/projects/{}/regions/{}"
_PAGE = "https://console.cloud.google.com/iam-admin/quotas?project={}"
# How metrics call a family: Google's page on quotas has tpu-v5s-litepod-serving-preemptible, users'
# scripts have tpu-v4s-preemptible (2026-08).
_FAMILY = {"v4": "v4s", "v5e": "v5s"}
# The word of a family's second quota. v2 and v3 have one for slices of several hosts, v5e for one
# host: v5litepod-1, -4 and -8 (cloud.google.com/tpu/docs/quota, a copy of 2025).
_SECOND = {"v2": "pod", "v3": "pod", "v5e": "serving"}
_UNLIMITED = -1


class _Limit(NamedTuple):
    """How much of a metric a project may use, and where: the zone or its region."""

    height: float
    place: str

    def __str__(self) -> str:
        height = "unlimited" if self.height == math.inf else f"{self.height:g}"
        return f"{height} in {self.place}"


def tpu(asked: Asked) -> Iterator[Finding]:
    """Ask how much of this kind of TPU the project may use in each of its zones, and compare."""
    wanted, zones = asked.settings.tpu, asked.settings.tpu_zones
    accelerator = asked.context.catalog.accelerator(wanted.accelerator_type)
    if accelerator is None or not is_enabled(asked, TPU_API):
        yield not_enabled("TPU quota", TPU_API)
        return
    url = _METRICS.format(asked.project)
    metrics = [
        metric
        for metric in asked.google.pages(url, "metrics", {"pageSize": 200})
        if _fits(metric["metric"].partition("/")[2], accelerator, wanted.capacity)
    ]
    # As the number in a type's name counts: cores up to v5p, chips from v5e on.
    needed = int(accelerator.name.rpartition("-")[2]) * wanted.slices
    found = [
        _judged(_limits(metrics, zone), needed, _standing(asked, accelerator, zone), zone, asked)
        for zone in zones
    ]
    # Without quota in one zone `pulumi up` goes on to the next one, as without capacity.
    nowhere = all(one.state == WRONG for one in found)
    yield from (one if nowhere or one.state != WRONG else _passed_over(one) for one in found)


def _passed_over(finding: Finding) -> Finding:
    said = f"{finding.said}: pulumi up goes on to another zone"
    return replace(finding, state=WARNING, said=said)


def _judged(
    limits: Mapping[str, _Limit], needed: int, standing: int, zone: str, asked: Asked
) -> Finding:
    kind, setting = asked.settings.tpu.accelerator_type, asked.settings.setting_of(zone)
    page = _PAGE.format(asked.project)
    cure = f"Ask for more at {page}, or change {setting}, type or tpu.capacity"
    if not limits:
        said = f"Google lists no quota for {kind}, {asked.settings.tpu.capacity}, in {zone}"
        return Finding("TPU quota", UNKNOWN, said, cure)
    limit = min(limits.values())
    said = ", ".join(f"{metric} is {one}" for metric, one in limits.items())
    if limit.height == math.inf:
        return Finding("TPU quota", OK, said)
    said += f", {needed} needed"
    if limit.height < needed:
        return Finding("TPU quota", WRONG, said, cure)
    if limit.height < needed + standing:
        said += f", and TPUs of this kind that stand there hold {standing}"
        return Finding("TPU quota", WARNING, said, "Delete one that nobody uses")
    return Finding("TPU quota", OK, said)


def _limits(metrics: Iterable[dict[str, Any]], zone: str) -> dict[str, _Limit]:
    """Return the lowest limit in a zone, or its region, of each metric."""
    found: dict[str, _Limit] = {}
    for metric in metrics:
        name = metric["metric"].partition("/")[2]
        for limit in metric.get("consumerQuotaLimits", ()):
            here = _limit(limit.get("quotaBuckets", ()), zone)
            if here:
                found[name] = min(found.get(name, here), here)
    return found


def _limit(buckets: Iterable[dict[str, Any]], zone: str) -> _Limit | None:
    place = {"zone": zone, "region": zone.rpartition("-")[0]}
    here = [one for one in buckets if one.get("dimensions", {}).items() <= place.items()]
    if not here:
        return None
    # The most specific one comes last.
    height = int(here[-1].get("effectiveLimit", "0"))
    regional = "region" in here[-1].get("dimensions", {})
    return _Limit(
        math.inf if height == _UNLIMITED else height, place["region" if regional else "zone"]
    )


def _fits(name: str, accelerator: Accelerator, capacity: Capacity) -> bool:
    words = {*name.split("-")}
    family = accelerator.family
    if "tpu" not in words or words.isdisjoint((family, _FAMILY.get(family, family))):
        return False
    if (_SECOND.get(family) in words) != _takes_second(accelerator):
        return False
    # Flex-start takes preemptible quota (docs.cloud.google.com/tpu/docs/request-using-flex-start).
    taken_away = capacity in (Capacity.SPOT, Capacity.PREEMPTIBLE, Capacity.FLEX_START)
    reserved = capacity is Capacity.RESERVED
    return ("preemptible" in words, "reserved" in words) == (taken_away, reserved)


def _takes_second(accelerator: Accelerator) -> bool:
    family = accelerator.family
    return family in _SECOND and (accelerator.hosts == 1) == (family == "v5e")


def _standing(asked: Asked, accelerator: Accelerator, zone: str) -> int:
    """Return what TPUs hold of the quota in a zone: Google counts preempted ones too."""
    url = _NODES.format(asked.project, zone)
    own = asked.context.names.tpus(asked.settings.tpu.slices)
    try:
        nodes = [*asked.google.pages(url, "nodes")]
    except NotFound:  # A zone without TPUs, which the question about the type names.
        return 0
    others = (
        asked.context.catalog.accelerator(node.get("acceleratorType", ""))
        for node in nodes
        if node["name"].rpartition("/")[2] not in own
    )
    return sum(
        int(other.name.rpartition("-")[2])
        for other in others
        if other and other.family == accelerator.family
        if _takes_second(other) == _takes_second(accelerator)
    )


def vcpus(asked: Asked) -> Iterator[Finding]:
    """Ask whether the VM's vCPUs fit into the region's quota."""
    settings = asked.settings
    machine = asked.context.catalog.machine_types.get(settings.vm.machine_type)
    if machine is None:
        return
    if not is_enabled(asked, COMPUTE_API):
        yield not_enabled("vCPU quota", COMPUTE_API)
        return
    region = asked.google.get(_REGION.format(asked.project, settings.region))
    quotas = {quota["metric"]: quota for quota in region.get("quotas", ())}
    names = _vcpu_metrics(machine.name, settings.vm.capacity)
    metric = next((name for name in names if name in quotas), None)
    if metric is None:
        yield Finding("vCPU quota", UNKNOWN, f"Google lists no quota of {names[0]}", "")
        return
    limit, used = (float(quotas[metric][key]) for key in ("limit", "usage"))
    said = f"{metric} is {limit:g} in {settings.region}, {used:g} used, {machine.vcpus} needed"
    if used + machine.vcpus <= limit:
        yield Finding("vCPU quota", OK, said)
    else:
        cure = f"Ask for more at {_PAGE.format(asked.project)}, or use a smaller vm.machineType"
        yield Finding("vCPU quota", WRONG if limit < machine.vcpus else WARNING, said, cure)


def _vcpu_metrics(machine: str, capacity: VmCapacity) -> tuple[str, ...]:
    """Return the names of the quota, the one that counts first; n1 and e2 have the common one."""
    own = f"{machine.partition('-')[0].upper()}_CPUS"
    common = ("CPUS",) if own in ("N1_CPUS", "E2_CPUS") else (own, "CPUS")
    return common if capacity is VmCapacity.ON_DEMAND else ("PREEMPTIBLE_CPUS", *common)
