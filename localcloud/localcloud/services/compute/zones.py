"""Regions and zones."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.services.compute import catalog
from localcloud.services.compute.api import API
from localcloud.services.compute.links import shown, url_of
from localcloud.services.compute.paging import page

_CREATED = "1969-12-31T16:00:00.000-08:00"


def _number(names: list[str], name: str) -> str:
    return str(1000 + names.index(name))


def _region(project: str, name: str) -> Json:
    path = f"projects/{project}/regions/{name}"
    return {
        "kind": "compute#region",
        "id": _number(list(catalog.regions()), name),
        "creationTimestamp": _CREATED,
        "name": name,
        "description": name,
        "status": "UP",
        "zones": [url_of(f"projects/{project}/zones/{zone}") for zone in catalog.regions()[name]],
        "quotas": [{"metric": "CPUS", "limit": 2400, "usage": 0}],
        "selfLink": url_of(path),
    }


def _zone(project: str, name: str) -> Json:
    names = catalog.zones()
    return {
        "kind": "compute#zone",
        "id": _number(names, name),
        "creationTimestamp": _CREATED,
        "name": name,
        "description": name,
        "status": "UP",
        "region": url_of(f"projects/{project}/regions/{catalog.region_of(name)}"),
        "selfLink": url_of(f"projects/{project}/zones/{name}"),
    }


@API.method("regions.get", permission="compute.regions.get")
def get_region(cloud: Cloud, call: Call) -> Json:
    """Describe a region."""
    catalog.require_region(call.params["region"])
    return shown(call, _region(call.project, call.params["region"]))


@API.method("regions.list", permission="compute.regions.list")
def list_regions(cloud: Cloud, call: Call) -> Json:
    """List the regions."""
    items = [_region(call.project, name) for name in catalog.regions()]
    return page(call, "compute#regionList", f"projects/{call.project}/regions", items)


@API.method("zones.get", permission="compute.zones.get")
def get_zone(cloud: Cloud, call: Call) -> Json:
    """Describe a zone."""
    catalog.require_zone(call.params["zone"])
    return shown(call, _zone(call.project, call.params["zone"]))


@API.method("zones.list", permission="compute.zones.list")
def list_zones(cloud: Cloud, call: Call) -> Json:
    """List the zones."""
    zones = catalog.zones()
    items = [_zone(call.project, name) for name in zones]
    return page(call, "compute#zoneList", f"projects/{call.project}/zones", items)
