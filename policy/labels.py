"""Labels name the owner of a resource, on the bill, too."""

from __future__ import annotations

from collections.abc import Iterator

from policy.machines import machines
from policy.resource import UNKNOWN, Resource, group
from policy.rule import Config, Option, ResourceRule

_REQUIRED = "required"
_LABELLED = ("gcp:storage/bucket:Bucket", "gcp:compute/disk:Disk")
# The provider has no field for its labels.
_WITHOUT = "gcp:tpu/v2QueuedResource:V2QueuedResource"


def _check(resource: Resource, config: Config) -> Iterator[str]:
    is_machine = resource.type != _WITHOUT and any(True for _ in machines(resource))
    if resource.type not in _LABELLED and not is_machine:
        return
    if resource.props.get("labels") is UNKNOWN:
        return
    labels = group(resource.props, "labels")
    missing = [key for key in config[_REQUIRED] if not labels.get(key)]
    if missing:
        yield resource.wrong(
            "labels",
            dict(labels) or None,
            f"without {', '.join(missing)}, so nobody can tell whose it is",
            "Add it; the setting labels of the stack file is for every resource",
        )


REQUIRED_LABELS = ResourceRule(
    "required-labels",
    "Buckets, disks, VMs and TPUs have the labels that say whose they are.",
    {_REQUIRED: Option("array", ["managed-by", "tpu-stack"], "Labels that must not be empty.")},
    check=_check,
)
