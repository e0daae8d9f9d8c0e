"""What Google offers: regions, zones, machine types and public images, read from data files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from localcloud import data
from localcloud.core import projects
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid


@dataclass(frozen=True)
class MachineType:
    """A machine type; `memory` in GiB."""

    name: str
    vcpus: int
    memory: float
    shared: bool = False


@lru_cache(maxsize=1)
def regions() -> dict[str, list[str]]:
    """Return the zones of every region."""
    places = data.load("compute-places")
    return {
        name: [f"{name}-{letter}" for letter in about["zones"]] for name, about in places.items()
    }


def zones() -> list[str]:
    """Return the zones of all regions."""
    return [zone for zones in regions().values() for zone in zones]


@lru_cache(maxsize=1)
def ai_zones() -> frozenset[str]:
    """Return the zones for accelerators, which have no usual machine types."""
    places = data.load("compute-places").items()
    return frozenset(f"{name}-{zone}" for name, about in places for zone in about.get("ai", []))


def is_on(cloud: Cloud, zone: str) -> bool:
    """Return whether a zone may be used: AI zones once the setting `ai-zones` is on."""
    return zone not in ai_zones() or bool(cloud.setting("ai-zones").get("on"))


def visible(cloud: Cloud, project: str, place: str) -> bool:
    """Return whether lists show a region or zone to a project.

    Google shows a closed region to those it lets in: here the local cloud's own project alone.
    """
    if not is_on(cloud, place):
        return False
    places = data.load("compute-places")
    about = places.get(place) or places.get(region_of(place), {})
    return project == projects.DEFAULT_PROJECT or "closed" not in about


def auto_ranges(cloud: Cloud, project: str) -> dict[str, str]:
    """Return the ranges of an auto mode network's subnets by region."""
    places = data.load("compute-places")
    return {n: p["range"] for n, p in places.items() if "range" in p and visible(cloud, project, n)}


def region_of(zone: str) -> str:
    """Return the region that a zone lies in."""
    return zone.rpartition("-")[0]


def require_zone(zone: str) -> None:
    """Refuse a zone that does not exist."""
    if zone not in regions().get(region_of(zone), []) and zone not in ai_zones():
        raise invalid(f"Invalid value for field 'zone': '{zone}'. Unknown zone.")


def require_region(region: str) -> None:
    """Refuse a region that does not exist."""
    if region not in regions():
        raise invalid(f"Invalid value for field 'region': '{region}'. Unknown region.")


@lru_cache(maxsize=1)
def machine_types() -> dict[str, MachineType]:
    """Return every predefined machine type by name."""
    offered = data.load("compute-machine-types") | data.load("compute-shared-core-types")
    return {name: MachineType(name, **about) for name, about in offered.items()}


def machine_type(name: str, zone: str) -> MachineType:
    """Return the machine type `name`.

    Raises:
        ApiError: 400 for a custom type, which the local cloud does not offer, and 404 for one
            that does not exist.
    """
    if name.startswith("custom-") or "-custom-" in name:
        raise invalid(
            f"Invalid value for field 'machineType': '{name}'. The local cloud offers no custom "
            f"machine types; predefined ones are {', '.join(sorted(machine_types()))}."
        )
    found = None if zone in ai_zones() else machine_types().get(name)
    if found is None:
        raise ApiError(404, f"The resource 'zones/{zone}/machineTypes/{name}' was not found")
    return found


def images(project: str) -> dict[str, dict[str, Any]]:
    """Return the public images of a project: family and disk size (GB) by name."""
    found: dict[str, dict[str, Any]] = data.load("compute-images").get(project, {})
    return found


def image_projects() -> list[str]:
    """Return the projects that publish images."""
    return list(data.load("compute-images"))
