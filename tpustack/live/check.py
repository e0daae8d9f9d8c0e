"""What Google says of a stack before `pulumi up`: its zone, quotas, policies, and all questions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from infra.apis import COMPUTE_API, TPU_API, apis_of
from infra.catalog.entries import Accelerator
from infra.checks.context import nearest
from infra.checks.tpu import AI, SWITCH_ON
from infra.settings import StackSettings
from infra.settings.machines import Architecture, Capacity, RunOn, VmCapacity
from tpustack.cloud.google import Forbidden, NotFound
from tpustack.live import project
from tpustack.live.project import (
    OK,
    UNKNOWN,
    WARNING,
    WRONG,
    Finding,
    Question,
    Target,
    answers,
    is_enabled,
    needs,
    not_enabled,
    permissions,
)

_TPU = "https://tpu.googleapis.com/{}/projects/{}/locations/{}/{}"
_MACHINE = "https://compute.googleapis.com/compute/v1/projects/{}/zones/{}/machineTypes/{}"
# What the TPU API answers for a zone that it does not have, or does not show to the project.
_UNKNOWN = "is not found or access is unauthorized"


@needs(TPU_API, "TPU type")
def accelerator_type(target: Target) -> Iterator[Finding]:
    """Ask whether each zone that the TPU may be in has its type."""
    wanted = target.settings.tpu.accelerator_type
    for zone in target.settings.tpu_zones:
        offered = _offered(target, zone, "v2", "acceleratorTypes", "type")
        setting = f"tpu.acceleratorType or {target.settings.setting_of(zone)}"
        yield _in_zone("TPU type", wanted, offered, target, zone, setting)


@needs(TPU_API, "TPU software")
def software(target: Target) -> Iterator[Finding]:
    """Ask whether each of those zones has the runtime, or a classic node's its TensorFlow."""
    tpu = target.settings.tpu
    if target.settings.architecture is Architecture.NODE:
        zone = target.settings.zone
        offered = _offered(target, zone, "v1", "tensorflowVersions", "version")
        wanted = tpu.tensorflow_version or ""
        yield _in_zone("TPU software", wanted, offered, target, zone, "tpu.tensorflowVersion")
    else:
        wanted = tpu.runtime_version or ""
        for zone in target.settings.tpu_zones:
            offered = _offered(target, zone, "v2", "runtimeVersions", "version")
            yield _in_zone("TPU software", wanted, offered, target, zone, "tpu.runtimeVersion")


@needs(COMPUTE_API, "machine type")
def machine_type(target: Target) -> Iterator[Finding]:
    """Ask whether the VM's zone has its machine type."""
    wanted, zone = target.settings.vm.machine_type, target.settings.vm_zone
    try:
        found = target.google.get(_MACHINE.format(target.project, zone, wanted))
    except NotFound:
        cure = "Set vm.machineType to another one"
        yield Finding("machine type", WRONG, f"{zone} has no {wanted}", cure)
        return
    gib = int(found["memoryMb"]) / 1024
    needed = target.settings.training.model_memory_gib
    if gib < needed:
        said = f"{wanted} has {gib:g} GiB, but training.modelMemoryGib is {needed:g}"
        yield Finding("machine type", WRONG, said, "Set vm.machineType to a larger one")
    else:
        yield Finding("machine type", OK, f"{zone} has {wanted} with {gib:g} GiB")


def _offered(target: Target, zone: str, version: str, collection: str, field: str) -> list[str]:
    url = _TPU.format(version, target.project, zone, collection)
    try:
        return [str(one[field]) for one in target.google.pages(url, collection, {"pageSize": 500})]
    except NotFound:
        return []
    except Forbidden as error:
        if _UNKNOWN not in str(error):
            raise
        return []


def _in_zone(
    about: str, wanted: str, offered: Iterable[str], target: Target, zone: str, setting: str
) -> Finding:
    known = list(offered)
    if wanted in known:
        return Finding(about, OK, f"{zone} has {wanted}")
    if not known:
        cure = f"Change {target.settings.setting_of(zone)}"
        if AI in zone:
            cure = f"Switch AI zones on: `{SWITCH_ON.format(target.project)}`"
        return Finding(about, WRONG, f"{zone} offers no TPUs", cure)
    said = f"{zone} has no {wanted}"
    return Finding(about, WRONG, said, f"Change {setting}. {nearest(wanted, known)}")


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


def tpu(target: Target) -> Iterator[Finding]:
    """Ask how much of this kind of TPU the project may use in each of its zones, and compare."""
    wanted, zones = target.settings.tpu, target.settings.tpu_zones
    accelerator = target.context.catalog.accelerator(wanted.accelerator_type)
    if accelerator is None or not is_enabled(target, TPU_API):
        yield not_enabled("TPU quota", TPU_API)
        return
    url = _METRICS.format(target.project)
    metrics = [
        metric
        for metric in target.google.pages(url, "metrics", {"pageSize": 200})
        if _fits(metric["metric"].partition("/")[2], accelerator, wanted.capacity)
    ]
    # As the number in a type's name counts: cores up to v5p, chips from v5e on.
    needed = int(accelerator.name.rpartition("-")[2]) * wanted.slices
    found = [
        _judged(_limits(metrics, zone), needed, _standing(target, accelerator, zone), zone, target)
        for zone in zones
    ]
    # Without quota in one zone `pulumi up` tries the next one, as without capacity.
    nowhere = all(one.state == WRONG for one in found)
    yield from (one if nowhere or one.state != WRONG else _passed_over(one) for one in found)


def _passed_over(finding: Finding) -> Finding:
    said = f"{finding.said}: pulumi up tries another zone"
    return replace(finding, state=WARNING, said=said)


def _judged(
    limits: Mapping[str, _Limit], needed: int, standing: int, zone: str, target: Target
) -> Finding:
    kind, setting = target.settings.tpu.accelerator_type, target.settings.setting_of(zone)
    page = _PAGE.format(target.project)
    cure = f"Ask for more at {page}, or change {setting}, type or tpu.capacity"
    if not limits:
        said = f"Google lists no quota for {kind}, {target.settings.tpu.capacity}, in {zone}"
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
        return Finding("TPU quota", WARNING, said, "Delete one that is not in use")
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


def _standing(target: Target, accelerator: Accelerator, zone: str) -> int:
    """Return what TPUs hold of the quota in a zone: Google counts preempted ones too."""
    url = _NODES.format(target.project, zone)
    own = target.context.names.tpus(target.settings.tpu.slices)
    try:
        nodes = [*target.google.pages(url, "nodes")]
    except NotFound:  # A zone without TPUs, which the question about the type names.
        return 0
    others = (
        target.context.catalog.accelerator(node.get("acceleratorType", ""))
        for node in nodes
        if node["name"].rpartition("/")[2] not in own
    )
    return sum(
        int(other.name.rpartition("-")[2])
        for other in others
        if other and other.family == accelerator.family
        if _takes_second(other) == _takes_second(accelerator)
    )


@needs(COMPUTE_API, "vCPU quota")
def vcpus(target: Target) -> Iterator[Finding]:
    """Ask whether the VM's vCPUs fit into the region's quota."""
    settings = target.settings
    machine = target.context.catalog.machine_types.get(settings.vm.machine_type)
    if machine is None:
        return
    region = target.google.get(_REGION.format(target.project, settings.region))
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
        cure = f"Ask for more at {_PAGE.format(target.project)}, or use a smaller vm.machineType"
        yield Finding("vCPU quota", WRONG if limit < machine.vcpus else WARNING, said, cure)


def _vcpu_metrics(machine: str, capacity: VmCapacity) -> tuple[str, ...]:
    """Return the names of the quota, the one that counts first; n1 and e2 have the common one."""
    own = f"{machine.partition('-')[0].upper()}_CPUS"
    common = ("CPUS",) if own in ("N1_CPUS", "E2_CPUS") else (own, "CPUS")
    return common if capacity is VmCapacity.ON_DEMAND else ("PREEMPTIBLE_CPUS", *common)


# Organization policies that would refuse what the stack creates.
_API = "orgpolicy.googleapis.com"
_POLICY = "https://orgpolicy.googleapis.com/v2/projects/{}/policies/{}:getEffectivePolicy"
Rule = Mapping[str, Any]


@dataclass(frozen=True)
class Constraint:
    """One constraint (https://cloud.google.com/resource-manager/docs/organization-policy/\
org-policy-constraints, read 2026-11).

    Attributes:
        name: without `constraints/`.
        bites: whether a rule of the policy refuses something that the stack makes.
        cure: which setting helps, or who can.
        state: of the finding.
    """

    name: str
    bites: Callable[[Rule, StackSettings], bool]
    cure: str
    state: str = WRONG


def _enforced(rule: Rule) -> bool:
    return bool(rule.get("enforce"))


def _denies(rule: Rule, *values: str) -> bool:
    """Return whether a rule of a list lets none of the values through."""
    listed = rule.get("values", {})
    allowed, denied = (
        [value.removeprefix("is:") for value in listed.get(kind, ())]
        for kind in ("allowedValues", "deniedValues")
    )
    if rule.get("denyAll") or any(value in denied for value in values):
        return True
    return bool(allowed) and not any(value in allowed for value in values)


def _places(zone: str) -> tuple[str, ...]:
    """Return the names by which lists of locations may mean a zone."""
    region, continent = zone.rpartition("-")[0], zone.partition("-")[0]
    return (zone, region, *(f"in:{place}-locations" for place in (zone, region, continent)))


def _shielded(settings: StackSettings) -> bool:
    vm = settings.vm.shielded
    return vm.secure_boot and vm.vtpm and vm.integrity_monitoring


def _image(settings: StackSettings) -> str:
    return f"projects/{settings.vm.image.partition('/')[0]}"


CONSTRAINTS = (
    Constraint(
        "compute.vmExternalIpAccess",
        lambda rule, s: (s.vm.public_ip or s.tpu.external_ips) and _denies(rule),
        "Set vm.publicIp and tpu.externalIps to false",
    ),
    Constraint(
        "compute.requireOsLogin",
        lambda rule, s: not s.vm.os_login and _enforced(rule),
        "Set vm.osLogin: true",
    ),
    Constraint(
        "compute.trustedImageProjects",
        lambda rule, s: _denies(rule, _image(s)),
        "Set vm.image to one of a project that is allowed",
    ),
    Constraint(
        "gcp.resourceLocations",
        lambda rule, s: any(_denies(rule, *_places(zone)) for zone in s.tpu_zones),
        "Set zone, and tpu.queued.fallbackZones, to places that are allowed",
    ),
    Constraint(
        "gcp.restrictServiceUsage",
        lambda rule, s: any(_denies(rule, api) for api in apis_of(s)),
        "Ask an administrator of the organization to allow the APIs that the stack uses "
        "(docs/identity.md#apis)",
    ),
    Constraint(
        "compute.requireShieldedVm",
        lambda rule, s: _enforced(rule) and not _shielded(s),
        "Leave vm.shielded out",
    ),
    Constraint(
        "iam.disableServiceAccountCreation",
        lambda rule, s: _enforced(rule),
        "Ask an administrator of the organization: the stack creates a service account",
    ),
    # "'604800' violates constraint" (discuss.google.dev/t/175999): no default passes everywhere.
    Constraint(
        "storage.softDeletePolicySeconds",
        lambda rule, s: s.bucket.create and _denies(rule, str(s.bucket.kept_days * 86400)),
        "Set bucket.softDeleteDays to a duration that is allowed",
    ),
    Constraint(
        "compute.disableSerialPortAccess",
        lambda rule, s: s.training.run_on is RunOn.VM and _enforced(rule),
        "Read the training's output on the VM, with journalctl",
        WARNING,
    ),
    # Cloud Composer, whose nodes ask for such logging as our VM does, can't be created under it
    # (docs.cloud.google.com/composer/docs/composer-1/known-issues). Not tried with a VM.
    Constraint(
        "compute.disableSerialPortLogging",
        lambda rule, s: s.vm.serial_port_logging and _enforced(rule),
        "Set vm.serialPortLogging: false",
        WARNING,
    ),
)


def policies(target: Target) -> Iterator[Finding]:
    """Ask for the policies that would refuse something."""
    enabled = is_enabled(target, _API)
    if not enabled and not target.record().get("parent"):
        yield Finding("org policies", OK, f"{target.project} is in no organization")
        return
    if not enabled:
        cure = f"`gcloud services enable {_API} --project {target.project}`"
        yield Finding("org policies", UNKNOWN, f"{_API} is disabled", cure)
        return
    found = [finding for one in CONSTRAINTS for finding in _asked(one, target)]
    said = f"none of {len(CONSTRAINTS)} that were asked for refuses anything"
    yield from found or [Finding("org policies", OK, said)]


def _asked(constraint: Constraint, target: Target) -> Iterator[Finding]:
    policy = target.google.get(_POLICY.format(target.project, constraint.name))
    rules = policy.get("spec", {}).get("rules", [])
    if any(constraint.bites(rule, target.settings) for rule in rules):
        said = f"constraints/{constraint.name} refuses what the stack makes"
        yield Finding("org policies", constraint.state, said, constraint.cure)


QUESTIONS: dict[str, Question] = {
    "project": project.project,
    "billing": project.billing,
    "APIs": project.apis,
    "permissions": permissions,
    "TPU type": accelerator_type,
    "TPU software": software,
    "TPU quota": tpu,
    "machine type": machine_type,
    "vCPU quota": vcpus,
    "bucket": project.bucket,
    "service account": project.account,
    "network": project.network,
    "peering": project.peering,
    "org policies": policies,
}
_AT_ONCE = 4
_CAPACITY = Finding(
    "capacity",
    UNKNOWN,
    "Google does not say before a TPU is requested",
    "tpu.queued waits for it",
)


def ask(target: Target) -> list[Finding]:
    """Return the findings in the questions' order."""
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        found = threads.map(lambda about: answers(about, QUESTIONS[about], target), QUESTIONS)
        return [*(finding for each in found for finding in each), _CAPACITY]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 2 if something is wrong, 3 if Google did not answer everything, else 0."""
    states = {finding.state for finding in findings if finding is not _CAPACITY}
    if WRONG in states:
        return 2
    return 3 if UNKNOWN in states else 0
