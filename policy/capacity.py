"""Machines that Google may take away: never in production, and elsewhere every TPU."""

from __future__ import annotations

from collections.abc import Iterator

from pulumi_policy import EnforcementLevel

from policy.machines import ON_DEMAND, PREEMPTIBLE, SPOT, machines
from policy.resource import UNKNOWN, Resource, group, in_stack
from policy.rule import PRODUCTION, Config, Option, ResourceRule, production

_REASON = "reasonLabel"
_FREE = "freeStacks"


def _reason() -> Option:
    return Option("string", "capacity-reason", "The label that says why an exception is right.")


def _no_spot(resource: Resource, config: Config) -> Iterator[str]:
    if not in_stack(resource, config[PRODUCTION]) or _is_justified(resource, config):
        return
    for machine in machines(resource):
        if machine.capacity_is in (SPOT, PREEMPTIBLE):
            yield resource.wrong(
                machine.capacity.path,
                machine.capacity.value,
                f"so Google may take the {machine.what} of production stack "
                f"{resource.stack} away at any moment",
                f"Set its capacity to on-demand or reserved, or say why in the label "
                f"{config[_REASON]}",
            )


def _spot(resource: Resource, config: Config) -> Iterator[str]:
    exempt = [*config[PRODUCTION], *config[_FREE]]
    if in_stack(resource, exempt) or _is_justified(resource, config):
        return
    for machine in machines(resource):
        if machine.what == "TPU" and machine.capacity_is == ON_DEMAND:
            yield resource.wrong(
                machine.capacity.path,
                machine.capacity.value,
                f"so the TPU of stack {resource.stack} is paid for in full, though training goes "
                "on from its checkpoint after a preemption",
                "Set its capacity to spot (of a classic node: preemptible), or say why in the "
                f"label {config[_REASON]}",
            )


def _is_justified(resource: Resource, config: Config) -> bool:
    labels = group(resource.props, "labels")
    return resource.props.get("labels") is UNKNOWN or bool(labels.get(config[_REASON]))


NO_SPOT_IN_PRODUCTION = ResourceRule(
    "no-spot-in-production",
    "Production has no spot or preemptible machine without a reason.",
    {PRODUCTION: production(), _REASON: _reason()},
    check=_no_spot,
)

SPOT_OUTSIDE_PRODUCTION = ResourceRule(
    "spot-outside-production",
    "Outside production, TPUs are spot, preemptible or reserved unless there is a reason.",
    {
        PRODUCTION: production(),
        _FREE: Option("array", ["local", "local-*"], "Names of stacks that cost nothing."),
        _REASON: _reason(),
    },
    EnforcementLevel.ADVISORY,
    check=_spot,
)
