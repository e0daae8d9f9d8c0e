"""No machine can be reached from the internet."""

from __future__ import annotations

from collections.abc import Iterator

from policy.machines import machines
from policy.resource import Resource
from policy.rule import ALLOWED, Config, ResourceRule, allowed


def _check(resource: Resource, config: Config) -> Iterator[str]:
    if resource.matches(config[ALLOWED]):
        return
    for machine in machines(resource):
        for address in machine.addresses:
            yield resource.wrong(
                address.path,
                address.value,
                "which gives it a public address",
                "Leave it out: SSH comes in through IAP, and Cloud NAT is the way out. Or add the "
                "machine to no-public-addresses.allowed",
            )


NO_PUBLIC_ADDRESSES = ResourceRule(
    "no-public-addresses",
    "VMs and TPUs have no public address.",
    {ALLOWED: allowed("machines that may have a public address")},
    check=_check,
)
