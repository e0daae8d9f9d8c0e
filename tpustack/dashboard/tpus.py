"""TPUs as the page shows them, from Google's API or from the bucket alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from infra.names import names_of
from tpu_core.bucket import Bucket
from tpu_core.lease import DURATION
from tpustack.cloud.google import Google
from tpustack.cloud.tpu import Nodes
from tpustack.dashboard.places import Place

Json = dict[str, Any]
Zone = tuple[str, str]
"""A project and a zone."""
ABSENT = "ABSENT"
_RUNNERS = "runners/"


def by_zone(places: Iterable[Place]) -> dict[Zone, dict[str, Place]]:
    """Return the names of the TPUs that stacks should have, and whose they are."""
    stacks = [(place.settings, place) for place in places if place.settings]
    zones: dict[Zone, dict[str, Place]] = {}
    for settings, place in stacks:
        named = zones.setdefault((settings.project, settings.zone), {})
        for name in names_of(settings, place.name).tpus(settings.tpu.slices):
            named[name] = place
    return zones


def of_zone(google: Google, zone: Zone, wanted: Mapping[str, Place]) -> list[Json]:
    """Return the TPUs of a zone that stacks should have. Raises TpustackError."""
    nodes = Nodes(google, zone[0])
    return [_row(name, place, nodes) for name, place in sorted(wanted.items())]


def of_bucket(store: Bucket) -> list[Json]:
    """Return the TPUs on which machines run jobs, as their leases say. Raises StoreError."""
    return [
        {
            "name": item.path.removeprefix(_RUNNERS).removesuffix(".json"),
            "state": "IN USE" if item.age <= DURATION else "NO MACHINE",
            "seen": item.age,
        }
        for item in store.items(_RUNNERS)
    ]


def _row(name: str, place: Place, nodes: Nodes) -> Json:
    settings = place.settings
    assert settings is not None, "only stacks have TPUs"
    # The agent may have moved it to another of the stack's zones.
    found = nodes.find(settings.tpu_zones, name)
    zone, node = found or (settings.zone, {"state": ABSENT})
    about = {"name": name, "place": place.name, "zone": zone, "state": node.get("state", "")}
    if found is None:
        return about
    return {
        **about,
        "type": node.get("acceleratorType", ""),
        "created": node.get("createTime"),
        "health": node.get("health", ""),
        "said": node.get("healthDescription", ""),
    }
