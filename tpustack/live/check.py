"""What Google says of a stack before anything is made: all questions, and the exit code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from infra.apis import apis_of
from infra.settings import StackSettings
from infra.settings.machines import RunOn
from tpustack.live import project, zone
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
    permissions,
)

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
    "TPU type": zone.accelerator_type,
    "TPU software": zone.software,
    "TPU quota": zone.tpu,
    "machine type": zone.machine_type,
    "vCPU quota": zone.vcpus,
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
