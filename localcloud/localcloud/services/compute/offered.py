"""What Google offers to read only: regions, zones, machine types and disk types."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.discovery import document
from localcloud.core.errors import not_found
from localcloud.services.compute import catalog
from localcloud.services.compute.api import API
from localcloud.services.compute.links import last, shown, url_of
from localcloud.services.compute.paging import aggregate, page

_CREATED = "1969-12-31T16:00:00.000-08:00"
_DISK_TYPES = {
    "pd-standard": "Standard Persistent Disk",
    "pd-balanced": "Balanced Persistent Disk",
    "pd-ssd": "SSD Persistent Disk",
    "hyperdisk-balanced": "Hyperdisk Balanced",
    "hyperdisk-ml": "Hyperdisk ML",
}
_DISK_SIZE = "10GB-65536GB"
# Those that Google shows for us-central1-a (March 2025), here of every zone: which machine types a
# zone has is no fact that the local cloud knows. cloud.google.com/compute/docs/cpu-platforms
_CPU_PLATFORMS = (
    "Ampere Altra,AMD Genoa,AMD Milan,AMD Rome,AMD Turin,Google Axion,NVIDIA Grace,Intel Broadwell,"
    "Intel Cascade Lake,Intel Emerald Rapids,Intel Granite Rapids,Intel Haswell,Intel Ice Lake,"
    "Intel Ivy Bridge,Intel Sandy Bridge,Intel Sapphire Rapids,Intel Skylake"
)


def _region(project: str, name: str) -> Json:
    catalog.require_region(name)
    return {
        "description": name,
        "status": "UP",
        "zones": [url_of(f"{project}/zones/{zone}") for zone in catalog.regions()[name]],
        "quotas": [{"metric": "CPUS", "limit": 2400, "usage": 0}],
    }


def _zone(project: str, name: str) -> Json:
    catalog.require_zone(name)
    return {
        "description": name,
        "status": "UP",
        "region": url_of(f"{project}/regions/{catalog.region_of(name)}"),
        "availableCpuPlatforms": _CPU_PLATFORMS.split(","),
        "supportsPzs": False,
    }


def _machine_type(zone: str, name: str) -> Json:
    about = catalog.machine_type(name, last(zone))
    return {
        "description": f"{about.vcpus} vCPUs, {about.memory:g} GB RAM",
        "guestCpus": about.vcpus,
        "memoryMb": round(about.memory * 1024),
        "maximumPersistentDisks": 16 if about.shared else 128,
        "maximumPersistentDisksSizeGb": "3072" if about.shared else "263168",
        "isSharedCpu": about.shared,
        "architecture": "X86_64",
        "zone": last(zone),
    }


def _disk_type(zone: str, name: str) -> Json:
    if name not in _DISK_TYPES:
        raise not_found(f"{zone}/diskTypes/{name}")
    return {
        "description": _DISK_TYPES[name],
        "validDiskSize": _DISK_SIZE,
        "zone": url_of(zone),
        "defaultDiskSizeGb": "100" if name.startswith("hyperdisk") else "500",
    }


def require_disk_type(name: str, project: str, zone: str) -> None:
    """Refuse a disk type that the zone does not offer."""
    _disk_type(f"projects/{project}/zones/{zone}", name)


def _serve(
    collection: str, first: int, offered: Iterable[str], about: Callable[[str, str], Json]
) -> None:
    """Register `get` and `list` of a collection, and `aggregatedList` of one in zones.

    Args:
        collection: such as `diskTypes`.
        first: the number of the first one.
        offered: the names.
        about: gets the path that a resource lies in and its name, and returns its own fields, or
            raises the error for an unknown name.
    """
    names, parameter = list(offered), collection.removesuffix("s")

    def view(place: str, name: str) -> Json:
        return {
            **about(place, name),
            "kind": f"compute#{parameter}",
            "id": str(first + names.index(name)),
            "creationTimestamp": _CREATED,
            "name": name,
            "selfLink": url_of(f"{place}/{collection}/{name}"),
        }

    @API.method(f"{collection}.get", permission=f"compute.{collection}.get")
    def get(cloud: Cloud, call: Call) -> Json:
        return shown(call, view(_place(call, parameter), call.params[parameter]))

    @API.method(f"{collection}.list", permission=f"compute.{collection}.list")
    def list_(cloud: Cloud, call: Call) -> Json:
        place = _place(call, parameter)
        none = collection == "machineTypes" and last(place) in catalog.ai_zones()
        shown_here = [name for name in names if catalog.visible(cloud, call.project, name)]
        items = [] if none else [view(place, name) for name in shown_here]
        return page(call, f"compute#{parameter}List", f"{place}/{collection}", items)

    def aggregated(cloud: Cloud, call: Call) -> Json:
        project = f"projects/{call.project}"
        by_zone = {
            f"zones/{zone}": [view(f"{project}/zones/{zone}", name) for name in names]
            for zone in catalog.zones()
            if catalog.visible(cloud, call.project, zone)
        }
        kind, path = f"compute#{parameter}AggregatedList", f"{project}/aggregated/{collection}"
        return aggregate(call, kind, path, collection, by_zone)

    if f"{collection}.aggregatedList" in document("compute", "v1").methods:
        permission = f"compute.{collection}.list"
        API.method(f"{collection}.aggregatedList", permission=permission)(aggregated)


def _place(call: Call, parameter: str) -> str:
    """Return the path that a call's resources lie in: the project, or a zone of it."""
    zone = call.params.get("zone", "")
    if not zone or parameter == "zone":
        return f"projects/{call.project}"
    catalog.require_zone(zone)
    return f"projects/{call.project}/zones/{zone}"


_serve("regions", 1000, catalog.regions(), _region)
_serve("zones", 1000, [*catalog.zones(), *sorted(catalog.ai_zones())], _zone)
_serve("machineTypes", 3000, catalog.machine_types(), _machine_type)
_serve("diskTypes", 30001, _DISK_TYPES, _disk_type)
