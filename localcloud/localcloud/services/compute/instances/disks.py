"""An instance's disks: made with it, attached to it, deleted with it."""

from __future__ import annotations

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.compute.api import STORE
from localcloud.services.compute.disks import complete, require_disk
from localcloud.services.compute.fingerprints import stamp_labels
from localcloud.services.compute.instances.records import KIND, changes
from localcloud.services.compute.kinds import tidy
from localcloud.services.compute.links import last, path_from, url_of
from localcloud.services.compute.resources import identity, load, require_name, require_new
from localcloud.services.compute.usage import holders, in_use


def attach_all(cloud: Cloud, call: Call, instance: str, sent: list[Json]) -> list[Json]:
    """Make and attach the disks of a new instance; call it under the store's lock.

    Args:
        cloud: the cloud.
        call: names project and zone.
        instance: path of the instance.
        sent: the request's `disks`, the boot disk first.
    """
    if not sent or not sent[0].get("boot"):
        raise invalid(
            "Invalid value for field 'resource.disks': The first disk must be a boot disk."
        )
    # Check all before storing the first: a refused instance leaves no disk behind.
    planned = [_plan(cloud, call, instance, disk) for disk in sent]
    for record in planned:
        cloud.store.put(STORE, path_from(record["selfLink"]), record)
    attached = enumerate(zip(planned, sent, strict=True))
    return [_attached(record, disk, index) for index, (record, disk) in attached]


def boot_disk_stays(record: Record) -> bool:
    """Return whether the disk that an instance boots from outlives it."""
    return any(disk["boot"] and not disk["autoDelete"] for disk in record["disks"])


def release_all(cloud: Cloud, record: Record) -> None:
    """Detach the disks of an instance that is deleted; those with autoDelete go with it."""
    for disk in record["disks"]:
        path = path_from(disk["source"])
        if disk["autoDelete"]:
            cloud.store.delete(STORE, path)
        else:
            _detach(cloud, path, record["selfLink"])


def _plan(cloud: Cloud, call: Call, instance: str, disk: Json) -> Record:
    if disk.get("type") == "SCRATCH":
        raise invalid("Invalid value for field 'disks[].type': the local cloud has no local SSDs.")
    if disk.get("source"):
        path = require_disk(cloud, call.project, disk["source"])
        record = load(cloud, path)
        others = holders(cloud, path)
        if others and disk.get("mode", "READ_WRITE") == "READ_WRITE":
            raise in_use(path, others[0])
    else:
        record = _new(cloud, call, instance, disk.get("initializeParams", {}), disk)
    users = [*record.get("users", []), url_of(instance)]
    return record | {"users": users, "lastAttachTimestamp": rfc3339(cloud.clock.now())}


def _new(cloud: Cloud, call: Call, instance: str, params: Json, disk: Json) -> Record:
    project = f"projects/{call.project}"
    access.require(cloud, call.principal, "compute.disks.create", [project])
    zone = call.params["zone"]
    name = params.get("diskName") or last(instance)
    require_name(name)
    path = f"{project}/zones/{zone}/disks/{name}"
    require_new(cloud, path)
    if disk.get("boot") and not params.get("sourceImage"):
        raise invalid(
            "Invalid value for field 'resource.disks[0].initializeParams.sourceImage': ''. A boot "
            "disk needs an image."
        )
    record = {
        **_disk_fields(params),
        **identity(cloud, "compute#disk", path, name),
        "status": "READY",
    }
    complete(call.project, zone, record)
    stamp_labels(record)
    return record


def _disk_fields(params: Json) -> Json:
    renamed = {"diskSizeGb": "sizeGb", "diskType": "type"}
    return {renamed.get(key, key): value for key, value in params.items() if key != "diskName"}


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
    for field in ("licenses", "guestOsFeatures", "architecture"):
        if record.get(field):
            attached[field] = record[field]
    return attached


def _detach(cloud: Cloud, path: str, instance_url: str) -> None:
    disk = cloud.store.get(STORE, path)
    if disk is None:
        return
    users = [user for user in disk.pop("users", []) if user != instance_url]
    disk["lastDetachTimestamp"] = rfc3339(cloud.clock.now())
    cloud.store.put(STORE, path, disk | ({"users": users} if users else {}))


def _find(record: Record, device: str) -> Json:
    for disk in record["disks"]:
        if disk["deviceName"] == device:
            found: Json = disk
            return found
    raise invalid(f"Invalid value for field 'deviceName': '{device}'. No attached disk found.")


@changes("attachDisk")
def attach_disk(cloud: Cloud, call: Call, record: Record) -> None:
    """Attach an existing disk."""
    path = KIND.path(call)
    sent = tidy(call.body)
    if not sent.get("source"):
        raise invalid("Invalid value for field 'resource.source': ''. Name the disk to attach.")
    if sent.get("boot") and any(disk["boot"] for disk in record["disks"]):
        raise invalid("The instance has a boot disk already.")
    names = {disk["deviceName"] for disk in record["disks"]}
    disk = _plan(cloud, call, path, sent)
    attached = _attached(disk, sent, len(record["disks"]))
    if attached["deviceName"] in names:
        raise invalid(f"The device name '{attached['deviceName']}' is used already.")
    cloud.store.put(STORE, path_from(disk["selfLink"]), disk)
    record["disks"].append(attached)


@changes("detachDisk")
def detach_disk(cloud: Cloud, call: Call, record: Record) -> None:
    """Detach a disk; the boot disk only of a stopped instance."""
    disk = _find(record, call.arg("deviceName"))
    if disk["boot"] and record["status"] != "TERMINATED":
        raise ApiError(400, "The boot disk of a running instance cannot be detached.")
    _detach(cloud, path_from(disk["source"]), record["selfLink"])
    record["disks"].remove(disk)
    for index, left in enumerate(record["disks"]):
        left["index"] = index


@changes("setDiskAutoDelete")
def set_disk_auto_delete(cloud: Cloud, call: Call, record: Record) -> None:
    """Say whether a disk is deleted with the instance."""
    _find(record, call.arg("deviceName"))["autoDelete"] = call.flag("autoDelete")
