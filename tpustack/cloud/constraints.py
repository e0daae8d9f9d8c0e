"""Organization policies that would refuse what a stack creates."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from infra.apis import apis_of
from infra.deployer import makes_accounts
from infra.settings import StackSettings
from tpustack.cloud.google import Google

API = "orgpolicy.googleapis.com"
_POLICY = "https://orgpolicy.googleapis.com/v2/projects/{}/policies/{}:getEffectivePolicy"
Rule = Mapping[str, Any]


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


_UNTRIED = "compute.disableSerialPortLogging"
_ADMINISTRATOR = "Ask an administrator of the organization"
# Each with whether a rule of its policy refuses what the stack makes, and what helps: from
# https://cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints
CONSTRAINTS: tuple[tuple[str, Callable[[Rule, StackSettings], object], str], ...] = (
    (
        "compute.vmExternalIpAccess",
        lambda rule, s: (s.vm.public_ip or s.tpu.external_ips) and _denies(rule),
        "Set vm.publicIp and tpu.externalIps to false",
    ),
    (
        "compute.requireOsLogin",
        lambda rule, s: s.has_vm and not s.vm.os_login and rule.get("enforce"),
        "Set vm.osLogin: true",
    ),
    (
        "compute.trustedImageProjects",
        lambda rule, s: s.has_vm and _denies(rule, f"projects/{s.vm.image.partition('/')[0]}"),
        "Set vm.image to one of a project that is allowed",
    ),
    (
        "gcp.resourceLocations",
        lambda rule, s: any(_denies(rule, *_places(zone)) for zone in s.tpu_zones),
        "Set zone, and tpu.queued.fallbackZones, to places that are allowed",
    ),
    (
        "gcp.restrictServiceUsage",
        lambda rule, s: any(_denies(rule, api) for api in apis_of(s)),
        f"{_ADMINISTRATOR} to allow the APIs that the stack uses (docs/team.md#apis)",
    ),
    (
        "iam.disableServiceAccountCreation",
        lambda rule, s: makes_accounts(s) and rule.get("enforce"),
        "Name existing service accounts in the settings (docs/landing-zone.md)",
    ),
    # "'604800' violates constraint" (discuss.google.dev/t/175999): no default passes everywhere.
    (
        "storage.softDeletePolicySeconds",
        lambda rule, s: s.bucket.create and _denies(rule, str(s.bucket.kept_days * 86400)),
        "Set bucket.softDeleteDays to a duration that is allowed",
    ),
    # Cloud Composer, whose nodes ask for such logging as our VM does, can't be created under it
    # (docs.cloud.google.com/composer/docs/composer-1/known-issues). Not tried with a VM.
    (
        _UNTRIED,
        lambda rule, s: s.has_vm and s.vm.serial_port_logging and rule.get("enforce"),
        "Set vm.serialPortLogging: false",
    ),
)


def refusals(google: Google, settings: StackSettings) -> Iterator[tuple[str, str, bool]]:
    """Yield each constraint of the project that refuses what the stack creates.

    With it comes what helps, and whether it is certain that it refuses.
    """
    for name, bites, cure in CONSTRAINTS:
        policy = google.get(_POLICY.format(settings.project, name))
        if any(bites(rule, settings) for rule in policy.get("spec", {}).get("rules", [])):
            yield name, cure, name != _UNTRIED
