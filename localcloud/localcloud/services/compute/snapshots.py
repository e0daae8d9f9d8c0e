"""Snapshots of disks. As a disk, a snapshot is a record without contents."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.store import Work
from localcloud.services.compute import disks, operations
from localcloud.services.compute.api import API
from localcloud.services.compute.kinds import Kind, place_of
from localcloud.services.compute.links import last, url_of
from localcloud.services.compute.resources import add, load, require_permission, serve


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    source = disks.require_disk(cloud, call.project, record.get("sourceDisk", ""))
    disk = load(cloud, source)
    record |= {
        "sourceDisk": url_of(source),
        "sourceDiskId": disk["id"],
        "diskSizeGb": disk["sizeGb"],
        "storageBytes": "0",
        "storageBytesStatus": "UP_TO_DATE",
        "status": "CREATING",
    }
    record.setdefault("storageLocations", [last(disk["zone"]).rpartition("-")[0]])


KIND = Kind(
    collection="snapshots",
    parameter="snapshot",
    scope="global",
    defaults={"snapshotType": "STANDARD"},
    prepare=_prepare,
    labelled=True,
)
serve(KIND)


@API.method("disks.createSnapshot", permission="compute.disks.createSnapshot")
def create_snapshot(cloud: Cloud, call: Call) -> Json:
    """Make a snapshot of a disk."""
    require_permission(cloud, call, KIND.permission("create"))
    disk = disks.KIND.path(call)
    path = add(cloud, call, KIND, "global", call.body | {"sourceDisk": disk})
    work = Work("compute.settle", {"path": path}, cloud.seconds("compute.create"))
    scope = place_of(call)
    return operations.start(cloud, call, work, scope=scope, kind="createSnapshot", target=path)
