"""Persistent disks, their snapshots, and the disks of instances.

A disk is a record; only what a machine writes to its boot disk is kept.
"""

from localcloud.core import Call, Cloud, Json, Record, Work, access, invalid, rfc3339
from localcloud.services.compute import api, catalog, instance_records, resources
from localcloud.services.compute.api import API, STORE, last, path_from, path_of, url_of

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

    A disk must be at least as large as its image, and has the image's licences.
    """
    type_ = last(record.get("type", "pd-standard"))
    catalog.require_disk_type(type_, project, zone)
    record["type"] = url_of(f"projects/{project}/zones/{zone}/diskTypes/{type_}")
    least = 10
    source = record.get("sourceImage", "")
    if source:
        image = catalog.resolve_image(project, source)
        least = int(image["diskSizeGb"])
        record |= {
            "sourceImage": image["selfLink"],
            "sourceImageId": image["id"],
            **{name: image[name] for name in _OF_IMAGE if name in image},
        }
    size = int(record.get("sizeGb") or (least if source else _DEFAULT_GB))
    if not (least if source else 1) <= size <= _LARGEST_GB:
        why = (
            f"Disk size must be between {least if source else 1} GB (the image's size) "
            f"and {_LARGEST_GB} GB."
        )
        raise api.wrong_value("resource.sizeGb", size, why)
    record["sizeGb"] = str(size)
    record["physicalBlockSizeBytes"] = str(record.get("physicalBlockSizeBytes") or 4096)
    for name in ("enableConfidentialCompute", "locked", "multiWriter", "satisfiesPzi"):
        record.setdefault(name, False)


# The image may come in the query, an older way that Google keeps.
def _prepare_disk(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    if query_image := call.arg("sourceImage"):
        record["sourceImage"] = query_image
    if record.get("sourceSnapshot"):
        _from_snapshot(cloud, call, record)
    complete(call.project, call.params["zone"], record)
    mode, kind = record.get("accessMode"), last(record["type"])
    if mode not in (None, *_ACCESS_MODES.get(kind, ("READ_WRITE_SINGLE",))):
        why = f"Access mode {mode} is not supported for disk type {kind}."
        raise api.wrong_value("resource.accessMode", mode, why)
    record["status"] = "CREATING"


def _from_snapshot(cloud: Cloud, call: Call, record: Json) -> None:
    """Give a new disk the snapshot's size, unless it asks for a larger one.

    The contents stay empty: snapshots are records here.
    """
    path = path_of(record["sourceSnapshot"], call.project)
    snapshot = resources.load(cloud, path)
    least = int(snapshot["diskSizeGb"])
    size = int(record.get("sizeGb") or least)
    if size < least:
        why = f"Requested disk size cannot be smaller than the snapshot size ({least} GB)"
        raise api.wrong_value("resource.sizeGb", size, why)
    record |= {
        "sizeGb": str(size),
        "sourceSnapshot": url_of(path),
        "sourceSnapshotId": snapshot["id"],
    }


def _remove_disk(cloud: Cloud, path: str, record: Json) -> None:
    if record.get("users"):
        raise resources.in_use(path, path_from(record["users"][0]))
    cloud.machines.discard(record["id"])


DISK = resources.Kind(
    collection="disks",
    parameter="disk",
    scope="zones",
    prepare=_prepare_disk,
    remove=_remove_disk,
    labelled=True,
)
resources.serve(DISK)


def require_disk(cloud: Cloud, project: str, reference: str) -> str:
    """Return the path of an existing disk; 404 when there is none."""
    path = path_of(reference, project)
    resources.load(cloud, path)
    return path


@resources.changes(DISK, "resize", "resizeDisk")
def resize_disk(cloud: Cloud, call: Call, record: Record) -> None:
    """Grow a disk; it cannot shrink.

    "You can only increase the size of the disk"; the file system in it is the guest's to grow.
    """
    size = int(call.body.get("sizeGb", 0))
    if not int(record["sizeGb"]) <= size <= _LARGEST_GB:
        why = f"Must be at least the current {record['sizeGb']} GB and at most {_LARGEST_GB} GB."
        raise api.wrong_value("sizeGb", size, why)
    record["sizeGb"] = str(size)


# Snapshots: records without contents.


# A snapshot is global, but stored in a location, by default that of its disk.
def _prepare_snapshot(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    source = require_disk(cloud, call.project, record.get("sourceDisk", ""))
    disk = resources.load(cloud, source)
    record |= {
        "sourceDisk": url_of(source),
        "sourceDiskId": disk["id"],
        "diskSizeGb": disk["sizeGb"],
        "storageBytes": "0",
        "storageBytesStatus": "UP_TO_DATE",
        "status": "CREATING",
    }
    record.setdefault("storageLocations", [last(disk["zone"]).rpartition("-")[0]])


SNAPSHOT = resources.Kind(
    collection="snapshots",
    parameter="snapshot",
    scope="global",
    defaults={"snapshotType": "STANDARD"},
    prepare=_prepare_snapshot,
    labelled=True,
)
resources.serve(SNAPSHOT)


@API.method("disks.createSnapshot", permission="compute.disks.createSnapshot")
def _create_snapshot(cloud: Cloud, call: Call) -> Json:
    resources.require_permission(cloud, call, SNAPSHOT.permission("create"))
    disk = DISK.path(call)
    path = resources.add(cloud, call, SNAPSHOT, "global", call.body | {"sourceDisk": disk})
    work = Work("compute.settle", {"path": path}, cloud.seconds("compute.create"))
    scope = resources.place_of(call)
    return api.start(cloud, call, work, scope=scope, kind="createSnapshot", target=path)


# The disks of instances.


def attach_all(cloud: Cloud, call: Call, instance: str, sent: list[Json]) -> list[Json]:
    """Make and attach the `disks` of a new instance, the boot disk first; hold the store's lock."""
    if not sent or not sent[0].get("boot"):
        why = "The first disk must be a boot disk."
        raise invalid(f"Invalid value for field 'resource.disks': {why}")
    # Check all before storing the first: a refused instance leaves no disk behind.
    planned = [_plan(cloud, call, instance, disk) for disk in sent]
    for record in planned:
        cloud.store.put(STORE, path_from(record["selfLink"]), record)
    attached = enumerate(zip(planned, sent, strict=True))
    return [_attached(record, disk, index) for index, (record, disk) in attached]


def release_all(cloud: Cloud, record: Record) -> None:
    """Detach the disks of an instance that is deleted; those with autoDelete go with it.

    They need not exist any longer: an insertion that fails half-way is cleaned up by this, too.
    """
    for disk in record["disks"]:
        path = path_from(disk["source"])
        if disk["autoDelete"]:
            cloud.store.delete(STORE, path)
        elif kept := cloud.store.get(STORE, path):
            # A disk knows its users, which keep it from being deleted; the time is what sweepers of
            # unused disks look at.
            users = [user for user in kept.pop("users", []) if user != record["selfLink"]]
            kept["lastDetachTimestamp"] = rfc3339(cloud.clock.now())
            cloud.store.put(STORE, path, kept | ({"users": users} if users else {}))


# Returns the disk's record with the instance among its users, without storing it. A disk of another
# instance may be attached as well, read-only.
def _plan(cloud: Cloud, call: Call, instance: str, disk: Json) -> Record:
    if disk.get("type") == "SCRATCH":
        raise invalid("Invalid value for field 'disks[].type': the local cloud has no local SSDs.")
    if disk.get("source"):
        path = require_disk(cloud, call.project, disk["source"])
        record = resources.load(cloud, path)
        others = resources.holders(cloud, path)
        if others and disk.get("mode", "READ_WRITE") == "READ_WRITE":
            raise resources.in_use(path, others[0])
    else:
        record = _new(cloud, call, instance, disk.get("initializeParams", {}), disk)
    users = [*record.get("users", []), url_of(instance)]
    return record | {"users": users, "lastAttachTimestamp": rfc3339(cloud.clock.now())}


def _new(cloud: Cloud, call: Call, instance: str, params: Json, disk: Json) -> Record:
    project = f"projects/{call.project}"
    access.require(cloud, call.principal, "compute.disks.create", [project])
    zone = call.params["zone"]
    name = params.get("diskName") or last(instance)
    resources.require_name(name)
    path = f"{project}/zones/{zone}/disks/{name}"
    resources.require_new(cloud, path)
    if disk.get("boot") and not params.get("sourceImage"):
        why = "A boot disk needs an image."
        raise api.wrong_value("resource.disks[0].initializeParams.sourceImage", "", why)
    # A disk has other names for these than the instance that it is made with.
    renamed = {"diskSizeGb": "sizeGb", "diskType": "type"}
    fields = {renamed.get(key, key): value for key, value in params.items() if key != "diskName"}
    record = fields | resources.identity(cloud, "compute#disk", path, name) | {"status": "READY"}
    complete(call.project, zone, record)
    resources.stamp_labels(record)
    return record


# The instance has a copy of what it needs to know of the disk, as Google's answers have.
def _attached(record: Record, sent: Json, index: int) -> Json:
    attached: Json = {
        "kind": "compute#attachedDisk",
        "type": "PERSISTENT",
        "mode": sent.get("mode", "READ_WRITE"),
        "source": record["selfLink"],
        "deviceName": sent.get("deviceName") or f"persistent-disk-{index}",
        "index": index,
        "boot": bool(sent.get("boot")),
        "autoDelete": bool(sent.get("autoDelete")),
        "interface": sent.get("interface", "SCSI"),
        "diskSizeGb": record["sizeGb"],
    }
    of_image = ("licenses", "guestOsFeatures", "architecture")
    return attached | {field: record[field] for field in of_image if record.get(field)}


@resources.changes(instance_records.INSTANCE, "setDiskAutoDelete")
def _set_disk_auto_delete(cloud: Cloud, call: Call, record: Record) -> None:
    device = call.arg("deviceName")
    found = [disk for disk in record["disks"] if disk["deviceName"] == device]
    if not found:
        raise api.wrong_value("deviceName", device, "No attached disk found.")
    found[0]["autoDelete"] = call.flag("autoDelete")
