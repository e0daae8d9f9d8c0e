"""TPUs as the page shows them, from Google's API or from the bucket alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from infra.names import names_of
from infra.startup.agent.jobs.lease import DURATION
from infra.startup.agent.jobs.store import Store
from tpustack.cloud.google import Google, NotFound
from tpustack.cloud.tpu import find
from tpustack.dashboard.places import Place

Json = dict[str, Any]
Zone = tuple[str, str]
"""A project and a zone."""
ABSENT = "ABSENT"
_NODES = "https://tpu.googleapis.com/v2/projects/{}/locations/{}/nodes"
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
    there = {node["name"].rpartition("/")[2]: node for node in _nodes(google, zone)}
    return [
        _row(name, place, zone, there[name]) if name in there else _absent(google, name, place)
        for name, place in sorted(wanted.items())
    ]


def of_bucket(store: Store) -> list[Json]:
    """Return the TPUs on which machines run jobs, as their leases say. Raises StoreError."""
    return [
        {
            "name": item.path.removeprefix(_RUNNERS).removesuffix(".json"),
            "state": "IN USE" if item.age <= DURATION else "NO MACHINE",
            "seen": item.age,
        }
        for item in store.items(_RUNNERS)
    ]


def _nodes(google: Google, zone: Zone) -> Iterator[Json]:
    return google.pages(_NODES.format(*zone), "nodes")


def _absent(google: Google, name: str, place: Place) -> Json:
    """Return the row of a TPU that is not in its stack's first zone; it may be in another."""
    settings = place.settings
    assert settings is not None, "only stacks have TPUs"
    project, zone, node = settings.project, settings.zone, None
    if len(settings.tpu_zones) > 1:
        with suppress(NotFound):
            zone, node = find(google, project, settings.tpu_zones, name)
    return _row(name, place, (project, zone), node)


def _row(name: str, place: Place, zone: Zone, node: Mapping[str, Any] | None) -> Json:
    about = {"name": name, "place": place.name, "zone": zone[1]}
    if node is None:
        return {**about, "state": ABSENT}
    return {
        **about,
        "state": node.get("state", ""),
        "type": node.get("acceleratorType", ""),
        "created": node.get("createTime"),
        "health": node.get("health", ""),
        "said": node.get("healthDescription", ""),
    }
