"""Bucket, VM and TPU are in one region: traffic between regions is slow and costs money."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from policy.machines import Property, machines, region_of
from policy.resource import Resource
from policy.rule import ALLOWED, Config, StackRule, allowed

_BUCKET = "gcp:storage/bucket:Bucket"


def _check(resources: Sequence[Resource], config: Config) -> Iterator[tuple[Resource, str]]:
    placed = [
        (resource, place)
        for resource in resources
        if not resource.matches(config[ALLOWED])
        for place in _places(resource)
        if region_of(place)
    ]
    if not placed:
        return
    # The others follow the TPU, which is the hardest to get elsewhere.
    first, where = next((pair for pair in placed if _is_tpu(pair[0])), placed[0])
    home = region_of(where)
    for resource, place in placed:
        if region_of(place) != home:
            yield (
                resource,
                resource.wrong(
                    place.path,
                    place.value,
                    f"but {first.title} is in {home}, and traffic between regions is slow and "
                    "costs money",
                    f"Put it into {home}, or add it to regions-agree.allowed",
                ),
            )


def _places(resource: Resource) -> list[Property]:
    if resource.type == _BUCKET:
        return [Property("location", resource.props.get("location"))]
    return [machine.where for machine in machines(resource)]


def _is_tpu(resource: Resource) -> bool:
    return any(machine.what == "TPU" for machine in machines(resource))


REGIONS_AGREE = StackRule(
    "regions-agree",
    "Bucket, VM and TPU are in one region.",
    {ALLOWED: allowed("buckets and machines that may be elsewhere")},
    check=_check,
)
