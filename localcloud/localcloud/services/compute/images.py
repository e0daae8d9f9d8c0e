"""Public images and their families."""

from __future__ import annotations

from typing import Any

from localcloud.core import access
from localcloud.core.call import ANONYMOUS, Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, not_found
from localcloud.services.compute import catalog
from localcloud.services.compute.api import API
from localcloud.services.compute.links import last, path_of, shown, url_of
from localcloud.services.compute.paging import page

_CREATED = "2025-06-10T00:00:00.000-07:00"
_FEATURES = ("UEFI_COMPATIBLE", "VIRTIO_SCSI_MULTIQUEUE", "GVNIC")


def resolve(project: str, reference: str) -> Json:
    """Return the image that a disk's `sourceImage` names.

    Args:
        project: of references that name none.
        reference: URL or path of an image, of a family (`…/global/images/family/f`) or, as gcloud
            sends it, of a family's view in a zone (`…/zones/-/imageFamilyViews/f`).

    Raises:
        ApiError: 404 when there is none.
    """
    path = path_of(reference, project)
    owner, name = path.split("/")[1], last(path)
    family = "/images/family/" in path or "/imageFamilyViews/" in path
    return newest(owner, name) if family else describe(owner, name)


def newest(project: str, family: str) -> Json:
    """Return the newest image of a family."""
    names = [n for n, about in catalog.images(project).items() if about["family"] == family]
    if not names:
        raise not_found(f"projects/{project}/global/images/family/{family}")
    return describe(project, names[-1])


def describe(project: str, name: str) -> Json:
    """Return the image `name`."""
    about: dict[str, Any] | None = catalog.images(project).get(name)
    if about is None:
        raise not_found(f"projects/{project}/global/images/{name}")
    arm = "arm64" in name
    license_ = about.get("license", about["family"])
    features = [*_FEATURES, *about.get("features", ())]
    codes = {"licenseCodes": [about["licenseCode"]]} if "licenseCode" in about else {}
    return codes | {
        "kind": "compute#image",
        "id": str(7_000_000_000 + sum(name.encode()) * 10_000 + len(name)),
        "creationTimestamp": _CREATED,
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


def _require(cloud: Cloud, call: Call, permission: str) -> None:
    # Google grants every authenticated caller the use of its public images.
    if call.project not in catalog.image_projects():
        access.require(cloud, call.principal, permission, [f"projects/{call.project}"])
    elif call.principal is ANONYMOUS:
        raise ApiError(401, "Request is missing required authentication credential.")


@API.method("images.get")
def get_image(cloud: Cloud, call: Call) -> Json:
    """Describe an image."""
    _require(cloud, call, "compute.images.get")
    return shown(call, describe(call.project, call.params["image"]))


@API.method("images.getFromFamily")
def get_from_family(cloud: Cloud, call: Call) -> Json:
    """Describe the newest image of a family."""
    _require(cloud, call, "compute.images.getFromFamily")
    return shown(call, newest(call.project, call.params["family"]))


@API.method("imageFamilyViews.get")
def get_family_view(cloud: Cloud, call: Call) -> Json:
    """Describe the image that a family stands for in a zone."""
    _require(cloud, call, "compute.images.getFromFamily")
    catalog.require_zone(call.params["zone"])
    return shown(call, {"image": newest(call.project, call.params["family"])})


@API.method("images.list")
def list_images(cloud: Cloud, call: Call) -> Json:
    """List a project's images."""
    _require(cloud, call, "compute.images.list")
    items = [describe(call.project, name) for name in catalog.images(call.project)]
    return page(call, "compute#imageList", f"projects/{call.project}/global/images", items)
