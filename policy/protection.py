"""Resources that hold production data cannot be deleted by mistake."""

from __future__ import annotations

from collections.abc import Iterator

from policy.resource import Resource, in_stack
from policy.rule import ALLOWED, PRODUCTION, Config, Option, ResourceRule, allowed, production

_TYPES = "types"
_STATEFUL = [
    "gcp:compute/disk:Disk",
    "gcp:compute/regionDisk:RegionDisk",
    "gcp:kms/cryptoKey:CryptoKey",
    "gcp:storage/bucket:Bucket",
]


def _check(resource: Resource, config: Config) -> Iterator[str]:
    if not in_stack(resource, config[PRODUCTION]) or resource.matches(config[ALLOWED]):
        return
    if resource.type in config[_TYPES] and not resource.protect:
        yield resource.wrong(
            "protect",
            False,
            f"so a change or a destroy of production stack {resource.stack} can delete its data",
            "Set protect: true (of the stack's bucket: bucket.protect)",
        )


PROTECT_IN_PRODUCTION = ResourceRule(
    "protect-in-production",
    "What holds data in production is protected.",
    {
        PRODUCTION: production(),
        _TYPES: Option("array", _STATEFUL, "Types of resources that hold data."),
        ALLOWED: allowed("resources that need no protection"),
    },
    check=_check,
)
