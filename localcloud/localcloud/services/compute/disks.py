"""Persistent disks: records, but for what a machine leaves on the one that it boots from."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.core.store import Record
from localcloud.services.compute import images
from localcloud.services.compute.kinds import Kind
from localcloud.services.compute.links import last, path_from, path_of, url_of
from localcloud.services.compute.offered import require_disk_type
from localcloud.services.compute.resources import changes, load, serve
from localcloud.services.compute.usage import in_use

_LARGEST_GB = 65536
_OF_IMAGE = ("licenses", "licenseCodes", "guestOsFeatures", "architecture")
_DEFAULT_GB = 500
# Source: cloud.google.com/compute/docs/disks/hyperdisks, "Sharing hyperdisks between VMs".
_ACCESS_MODES = {
    "hyperdisk-balanced": ("READ_WRITE_SINGLE", "READ_WRITE_MANY"),
    "hyperdisk-ml": ("READ_WRITE_SINGLE", "READ_ONLY_MANY"),
}


def complete(project: str, zone: str, record: Json) -> None:
    """Check a new disk's record and fill in what Google fills in; also for boot disks.

    Args:
        project: of references that name none.
        zone: of the disk.
        record: the disk, changed in place.
    """
    type_ = last(record.get("type", "pd-standard"))
    require_disk_type(type_, project, zone)
    record["type"] = url_of(f"projects/{project}/zones/{zone}/diskTypes/{type_}")
    least = 10
    source = record.get("sourceImage", "")
    if source:
        image = images.resolve(project, source)
        least = int(image["diskSizeGb"])
        record |= {
            "sourceImage": image["selfLink"],
            "sourceImageId": image["id"],
            **{name: image[name] for name in _OF_IMAGE if name in image},
        }
    size = int(record.get("sizeGb") or (least if source else _DEFAULT_GB))
    if not (least if source else 1) <= size <= _LARGEST_GB:
        raise invalid(
            f"Invalid value for field 'resource.sizeGb': '{size}'. Disk size must be between "
            f"{least if source else 1} GB (the image's size) and {_LARGEST_GB} GB."
        )
    record["sizeGb"] = str(size)
    record["physicalBlockSizeBytes"] = str(record.get("physicalBlockSizeBytes") or 4096)
    for name in ("enableConfidentialCompute", "locked", "multiWriter", "satisfiesPzi"):
        record.setdefault(name, False)


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    query_image = call.arg("sourceImage")
    if query_image:
        record["sourceImage"] = query_image
    if record.get("sourceSnapshot"):
        _from_snapshot(cloud, call, record)
    complete(call.project, call.params["zone"], record)
    _require_access_mode(record)
    record["status"] = "CREATING"


def _from_snapshot(cloud: Cloud, call: Call, record: Json) -> None:
    """Give a new disk the snapshot's size, unless it asks for a larger one."""
    path = path_of(record["sourceSnapshot"], call.project)
    snapshot = load(cloud, path)
    least = int(snapshot["diskSizeGb"])
    size = int(record.get("sizeGb") or least)
    if size < least:
        raise invalid(
            f"Invalid value for field 'resource.sizeGb': '{size}'. Requested disk size cannot be "
            f"smaller than the snapshot size ({least} GB)"
        )
    record |= {
        "sizeGb": str(size),
        "sourceSnapshot": url_of(path),
        "sourceSnapshotId": snapshot["id"],
    }


def _require_access_mode(record: Json) -> None:
    """Refuse an access mode that the type of disk lacks."""
    mode, kind = record.get("accessMode"), last(record["type"])
    if mode not in (None, *_ACCESS_MODES.get(kind, ("READ_WRITE_SINGLE",))):
        raise invalid(
            f"Invalid value for field 'resource.accessMode': '{mode}'. Access mode {mode} is not "
            f"supported for disk type {kind}."
        )


def _remove(cloud: Cloud, path: str, record: Json) -> None:
    if record.get("users"):
        raise in_use(path, path_from(record["users"][0]))
    cloud.machines.discard(record["id"])


KIND = Kind(
    collection="disks",
    parameter="disk",
    scope="zones",
    prepare=_prepare,
    remove=_remove,
    labelled=True,
)
serve(KIND)


def require_disk(cloud: Cloud, project: str, reference: str) -> str:
    """Return the path of an existing disk; 404 when there is none."""
    path = path_of(reference, project)
    load(cloud, path)
    return path


@changes(KIND, "resize", "resizeDisk")
def resize_disk(cloud: Cloud, call: Call, record: Record) -> None:
    """Grow a disk; it cannot shrink."""
    size = int(call.body.get("sizeGb", 0))
    if not int(record["sizeGb"]) <= size <= _LARGEST_GB:
        raise invalid(
            f"Invalid value for field 'sizeGb': '{size}'. Must be at least the current "
            f"{record['sizeGb']} GB and at most {_LARGEST_GB} GB."
        )
    record["sizeGb"] = str(size)
