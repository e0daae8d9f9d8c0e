"""What Google offers: regions, zones, machine types, disk types and public images."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from localcloud import data
from localcloud.core import ApiError, Cloud, access, not_found, projects
from localcloud.core.call import ANONYMOUS, Call, Json
from localcloud.services.compute import api
from localcloud.services.compute.api import API, last, path_of, shown, url_of


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
    """Return the zones for accelerators, which have no usual machine types.

    AI zones have names of their own, such as `us-central1-ai1a`, and belong to a region.
    """
    places = data.load("compute-places").items()
    return frozenset(f"{name}-{zone}" for name, about in places for zone in about.get("ai", []))


def is_on(cloud: Cloud, zone: str) -> bool:
    """Return whether a zone may be used: AI zones once the setting `ai-zones` is on."""
    return zone not in ai_zones() or bool(cloud.setting("ai-zones").get("on"))


def visible(cloud: Cloud, project: str, place: str) -> bool:
    """Return whether lists show a region or zone to a project.

    Google shows a closed region to those it lets in: here the local cloud's own project alone.
    """
    places = data.load("compute-places")
    about = places.get(place) or places.get(region_of(place), {})
    let_in = project == projects.DEFAULT_PROJECT or "closed" not in about
    return let_in and is_on(cloud, place)


def auto_ranges(cloud: Cloud, project: str) -> dict[str, str]:
    """Return the ranges of an auto mode network's subnets by region.

    They are the same in every project: cloud.google.com/vpc/docs/subnets#ip-ranges.
    """
    places = data.load("compute-places")
    return {n: p["range"] for n, p in places.items() if "range" in p and visible(cloud, project, n)}


def region_of(zone: str) -> str:
    """Return the region of a zone."""
    return zone.rpartition("-")[0]


def require_zone(zone: str) -> None:
    """Refuse a zone that does not exist."""
    if zone not in regions().get(region_of(zone), []) and zone not in ai_zones():
        raise api.wrong_value("zone", zone, "Unknown zone.")


def require_region(region: str) -> None:
    """Refuse a region that does not exist."""
    if region not in regions():
        raise api.wrong_value("region", region, "Unknown region.")


@lru_cache(maxsize=1)
def tpu_machines() -> dict[str, dict[str, Any]]:
    """Return what is known of each machine type with a TPU, by name."""
    found: dict[str, dict[str, Any]] = data.load("compute-tpu-machines")
    return found


def is_offered(name: str, zone: str) -> bool:
    """Return whether a zone has a machine type: AI zones have those with a TPU alone."""
    if name in tpu_machines():
        return zone in tpu_machines()[name]["zones"]
    return zone not in ai_zones()


@lru_cache(maxsize=1)
def machine_types() -> dict[str, MachineType]:
    """Return every predefined machine type by name.

    Those of shared cores have a table of their own, since they are no products of vCPUs and GiB.
    """
    offered = data.load("compute-machine-types") | data.load("compute-shared-core-types")
    found = {name: MachineType(name, **about) for name, about in offered.items()}
    return found | {
        name: MachineType(name, about["vcpus"], about["memory"])
        for name, about in tpu_machines().items()
    }


def machine_type(name: str, zone: str) -> MachineType:
    """Return the machine type `name`; 400 for a custom type, 404 for one that does not exist."""
    if name.startswith("custom-") or "-custom-" in name:
        why = (
            "The local cloud offers no custom machine types; predefined ones are "
            f"{', '.join(sorted(machine_types()))}."
        )
        raise api.wrong_value("machineType", name, why)
    found = machine_types().get(name)
    if found is None or not is_offered(name, zone):
        raise ApiError(404, f"The resource 'zones/{zone}/machineTypes/{name}' was not found")
    return found


def images(project: str) -> dict[str, dict[str, Any]]:
    """Return the public images of a project: family and disk size (GB) by name."""
    found: dict[str, dict[str, Any]] = data.load("compute-images").get(project, {})
    return found


def image_projects() -> list[str]:
    """Return the projects that publish images."""
    return list(data.load("compute-images"))


# The methods of regions, zones, machine types and disk types.

_TYPES_CREATED = "1969-12-31T16:00:00.000-08:00"
_DISK_TYPES = {
    "pd-standard": "Standard Persistent Disk",
    "pd-balanced": "Balanced Persistent Disk",
    "pd-ssd": "SSD Persistent Disk",
    "hyperdisk-balanced": "Hyperdisk Balanced",
    "hyperdisk-ml": "Hyperdisk ML",
}
_DISK_SIZE = "10GB-65536GB"


def _region(project: str, name: str) -> Json:
    require_region(name)
    return {
        "description": name,
        "status": "UP",
        "zones": [url_of(f"{project}/zones/{zone}") for zone in regions()[name]],
        "quotas": [{"metric": "CPUS", "limit": 2400, "usage": 0}],
    }


# Lists of regions and zones are what clients check a setting against before they create anything.
def _zone(project: str, name: str) -> Json:
    require_zone(name)
    return {
        "description": name,
        "status": "UP",
        "region": url_of(f"{project}/regions/{region_of(name)}"),
    }


def _machine_type(zone: str, name: str) -> Json:
    about = machine_type(name, last(zone))
    return {
        "description": f"{about.vcpus} vCPUs, {about.memory:g} GB RAM",
        "guestCpus": about.vcpus,
        "memoryMb": round(about.memory * 1024),
        "maximumPersistentDisks": 16 if about.shared else 128,
        "maximumPersistentDisksSizeGb": "3072" if about.shared else "263168",
        "isSharedCpu": about.shared,
        "architecture": "X86_64",
        # "The name of the zone" (the discovery document), where other resources have its URL.
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


def _serve_offered(
    collection: str, first: int, offered: Iterable[str], about: Callable[[str, str], Json]
) -> None:
    """Register `get` and `list` of a collection, such as `diskTypes`.

    `first` is the number of the first one. `about` gets the path that a resource is in and its
    name, and returns its own fields or raises the error for an unknown name.
    """
    # Numbers follow from the order, so that they are the same after a restart.
    names, parameter = list(offered), collection.removesuffix("s")

    def view(place: str, name: str) -> Json:
        return {
            **about(place, name),
            "kind": f"compute#{parameter}",
            "id": str(first + names.index(name)),
            "creationTimestamp": _TYPES_CREATED,
            "name": name,
            "selfLink": url_of(f"{place}/{collection}/{name}"),
        }

    # All of these are read-only, and the same for every project but for what it may see.
    @API.method(f"{collection}.get", permission=f"compute.{collection}.get")
    def get(cloud: Cloud, call: Call) -> Json:
        return shown(call, view(_place_of(call, parameter), call.params[parameter]))

    @API.method(f"{collection}.list", permission=f"compute.{collection}.list")
    def list_(cloud: Cloud, call: Call) -> Json:
        place = _place_of(call, parameter)
        types = collection == "machineTypes"
        seen = [
            name
            for name in names
            if visible(cloud, call.project, name)
            and not (types and not is_offered(name, last(place)))
        ]
        items = [view(place, name) for name in seen]
        return api.page(call, f"compute#{parameter}List", f"{place}/{collection}", items)


def _place_of(call: Call, parameter: str) -> str:
    """Return the path that a call's resources are in: the project, or a zone of it."""
    zone = call.params.get("zone", "")
    if not zone or parameter == "zone":
        return f"projects/{call.project}"
    require_zone(zone)
    return f"projects/{call.project}/zones/{zone}"


_serve_offered("regions", 1000, regions(), _region)
_serve_offered("zones", 1000, [*zones(), *sorted(ai_zones())], _zone)
_serve_offered("machineTypes", 3000, machine_types(), _machine_type)
_serve_offered("diskTypes", 30001, _DISK_TYPES, _disk_type)


# Public images and their families.

_IMAGES_CREATED = "2025-06-10T00:00:00.000-07:00"
_FEATURES = ("UEFI_COMPATIBLE", "VIRTIO_SCSI_MULTIQUEUE", "GVNIC")


def resolve_image(project: str, reference: str) -> Json:
    """Return the image that a disk's `sourceImage` names: an image, or the newest of a family.

    A family's view in a zone (`…/zones/-/imageFamilyViews/f`) is what gcloud sends.
    """
    path = path_of(reference, project)
    owner, name = path.split("/")[1], last(path)
    family = "/images/family/" in path or "/imageFamilyViews/" in path
    return newest_image(owner, name) if family else describe_image(owner, name)


def newest_image(project: str, family: str) -> Json:
    """Return the newest image of a family.

    The table has the images of a family in the order of their age.
    """
    names = [n for n, about in images(project).items() if about["family"] == family]
    if not names:
        raise not_found(f"projects/{project}/global/images/family/{family}")
    return describe_image(project, names[-1])


def describe_image(project: str, name: str) -> Json:
    """Return the image `name`.

    Its number follows from its name: the same on every machine, as is its date.
    """
    about: dict[str, Any] | None = images(project).get(name)
    if about is None:
        raise not_found(f"projects/{project}/global/images/{name}")
    arm = "arm64" in name
    license_ = about.get("license", about["family"])
    features = [*_FEATURES, *about.get("features", ())]
    codes = {"licenseCodes": [about["licenseCode"]]} if "licenseCode" in about else {}
    return codes | {
        "kind": "compute#image",
        "id": str(7_000_000_000 + sum(name.encode()) * 10_000 + len(name)),
        "creationTimestamp": _IMAGES_CREATED,
        "name": name,
        "family": about["family"],
        "status": "READY",
        "sourceType": "RAW",
        "rawDisk": {"containerType": "TAR", "source": ""},
        "storageLocations": ["asia", "eu", "us"],
        "enableConfidentialCompute": False,
        "labels": {"public-image": "true"},
        "diskSizeGb": str(about["disk"]),
        "archiveSizeBytes": str(about["disk"] << 27),
        "architecture": "ARM64" if arm else "X86_64",
        "guestOsFeatures": [{"type": feature} for feature in features],
        "licenses": [url_of(f"projects/{project}/global/licenses/{license_}")],
        "labelFingerprint": "42WmSpB8rSM=",
        "selfLink": url_of(f"projects/{project}/global/images/{name}"),
    }


def _require_use(cloud: Cloud, call: Call, permission: str) -> None:
    # Google grants every authenticated caller the use of its public images.
    if call.project not in image_projects():
        access.require(cloud, call.principal, permission, [f"projects/{call.project}"])
    elif call.principal is ANONYMOUS:
        raise ApiError(401, "Request is missing required authentication credential.")


@API.method("images.get")
def _get_image(cloud: Cloud, call: Call) -> Json:
    _require_use(cloud, call, "compute.images.get")
    return shown(call, describe_image(call.project, call.params["image"]))


@API.method("images.getFromFamily")
def _get_from_family(cloud: Cloud, call: Call) -> Json:
    _require_use(cloud, call, "compute.images.getFromFamily")
    return shown(call, newest_image(call.project, call.params["family"]))


@API.method("imageFamilyViews.get")
def _get_family_view(cloud: Cloud, call: Call) -> Json:
    _require_use(cloud, call, "compute.images.getFromFamily")
    require_zone(call.params["zone"])
    return shown(call, {"image": newest_image(call.project, call.params["family"])})


@API.method("images.list")
def _list_images(cloud: Cloud, call: Call) -> Json:
    _require_use(cloud, call, "compute.images.list")
    items = [describe_image(call.project, name) for name in images(call.project)]
    return api.page(call, "compute#imageList", f"projects/{call.project}/global/images", items)
