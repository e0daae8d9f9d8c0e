"""Machine types and disk types: what a zone offers, read only."""

from __future__ import annotations

from collections.abc import Callable

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import not_found
from localcloud.services.compute import catalog
from localcloud.services.compute.api import API
from localcloud.services.compute.links import shown, url_of
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


def _machine_type(project: str, zone: str, name: str) -> Json:
    about = catalog.machine_type(name, zone)
    return {
        "kind": "compute#machineType",
        "id": str(3000 + list(catalog.machine_types()).index(name)),
        "creationTimestamp": _CREATED,
        "name": name,
        "description": f"{about.vcpus} vCPUs, {about.memory:g} GB RAM",
        "guestCpus": about.vcpus,
        "memoryMb": round(about.memory * 1024),
        "maximumPersistentDisks": 16 if about.shared else 128,
        "maximumPersistentDisksSizeGb": "3072" if about.shared else "263168",
        "isSharedCpu": about.shared,
        "architecture": "X86_64",
        "zone": zone,
        "selfLink": url_of(f"projects/{project}/zones/{zone}/machineTypes/{name}"),
    }


def _disk_type(project: str, zone: str, name: str) -> Json:
    if name not in _DISK_TYPES:
        raise not_found(f"projects/{project}/zones/{zone}/diskTypes/{name}")
    return {
        "kind": "compute#diskType",
        "id": str(30001 + list(_DISK_TYPES).index(name)),
        "creationTimestamp": _CREATED,
        "name": name,
        "description": _DISK_TYPES[name],
        "validDiskSize": _DISK_SIZE,
        "zone": url_of(f"projects/{project}/zones/{zone}"),
        "defaultDiskSizeGb": "100" if name.startswith("hyperdisk") else "500",
        "selfLink": url_of(f"projects/{project}/zones/{zone}/diskTypes/{name}"),
    }


def _serve(
    collection: str, parameter: str, names: list[str], make: Callable[[str, str, str], Json]
) -> None:
    kind = f"compute#{parameter}"

    def get(cloud: Cloud, call: Call) -> Json:
        zone = call.params["zone"]
        catalog.require_zone(zone)
        return shown(call, make(call.project, zone, call.params[parameter]))

    def list_(cloud: Cloud, call: Call) -> Json:
        zone = call.params["zone"]
        catalog.require_zone(zone)
        items = [make(call.project, zone, name) for name in names]
        path = f"projects/{call.project}/zones/{zone}/{collection}"
        return page(call, f"{kind}List", path, items)

    def aggregated(cloud: Cloud, call: Call) -> Json:
        zones = catalog.zones()
        by_zone = {f"zones/{zone}": [make(call.project, zone, n) for n in names] for zone in zones}
        path = f"projects/{call.project}/aggregated/{collection}"
        return aggregate(call, f"{kind}AggregatedList", path, collection, by_zone)

    at = f"compute.{collection}."
    API.method(f"{collection}.get", permission=f"{at}get")(get)
    API.method(f"{collection}.list", permission=f"{at}list")(list_)
    API.method(f"{collection}.aggregatedList", permission=f"{at}list")(aggregated)


_serve("machineTypes", "machineType", list(catalog.machine_types()), _machine_type)
_serve("diskTypes", "diskType", list(_DISK_TYPES), _disk_type)


def require_disk_type(name: str, project: str, zone: str) -> None:
    """Refuse a disk type that the zone does not offer."""
    _disk_type(project, zone, name)
