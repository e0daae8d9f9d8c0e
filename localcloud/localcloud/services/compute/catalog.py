"""What Google offers: regions, zones, machine types and public images, read from data files."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

from localcloud.core.errors import ApiError, invalid

_DATA = Path(__file__).parents[2] / "data"


@dataclass(frozen=True)
class MachineType:
    """A machine type; `memory` in GiB."""

    name: str
    vcpus: int
    memory: float
    shared: bool = False


@cache
def _load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((_DATA / name).read_text(encoding="utf-8"))
    return loaded


@lru_cache(maxsize=1)
def regions() -> dict[str, list[str]]:
    """The zones of every region."""
    places = _load("compute-places.yaml")
    return {
        name: [f"{name}-{letter}" for letter in about["zones"]] for name, about in places.items()
    }


def auto_range(region: str) -> str:
    """The range of an auto mode network's subnet in `region`."""
    return str(_load("compute-places.yaml")[region]["range"])


def region_of(zone: str) -> str:
    """The region that a zone lies in."""
    return zone.rpartition("-")[0]


def require_zone(zone: str) -> None:
    """Refuse a zone that does not exist."""
    if zone not in regions().get(region_of(zone), []):
        raise invalid(f"Invalid value for field 'zone': '{zone}'. Unknown zone.")


def require_region(region: str) -> None:
    """Refuse a region that does not exist."""
    if region not in regions():
        raise invalid(f"Invalid value for field 'region': '{region}'. Unknown region.")


@lru_cache(maxsize=1)
def machine_types() -> dict[str, MachineType]:
    """Every predefined machine type by name."""
    data = _load("compute-machine-types.yaml")
    types = [
        MachineType(f"{family}-{vcpus}", vcpus, vcpus * about["memory"])
        for family, about in data["families"].items()
        for vcpus in about["vcpus"]
    ]
    types += [MachineType(name, **about) for name, about in data["types"].items()]
    return {machine_type.name: machine_type for machine_type in types}


def machine_type(name: str, zone: str) -> MachineType:
    """The machine type `name`.

    Raises:
        ApiError: 400 for a custom type, which the local cloud does not offer, and 404 for one
            that does not exist.
    """
    if name.startswith("custom-") or "-custom-" in name:
        raise invalid(
            f"Invalid value for field 'machineType': '{name}'. The local cloud offers no custom "
            f"machine types; predefined ones are {', '.join(sorted(machine_types()))}."
        )
    found = machine_types().get(name)
    if found is None:
        raise ApiError(404, f"The resource 'zones/{zone}/machineTypes/{name}' was not found")
    return found


def images(project: str) -> dict[str, dict[str, Any]]:
    """The public images of a project: family and disk size (GB) by name."""
    found: dict[str, dict[str, Any]] = _load("compute-images.yaml").get(project, {})
    return found


def image_projects() -> list[str]:
    """The projects that publish images."""
    return list(_load("compute-images.yaml"))
