"""The data disks of a TPU VM: all of its hosts get the same ones.

Source: cloud.google.com/tpu/docs/attach-durable-block-storage (kinds and numbers of disks, and that
more than one host may only read).
"""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.services.compute import disks as compute_disks
from localcloud.services.compute.api import STORE, last, url_of
from localcloud.services.compute.resources import holders, in_use, load
from localcloud.services.tpu.api import NODE
from localcloud.services.tpu.catalog import Accelerator

_WRITE = "READ_WRITE"
# Disks of these kinds attach to a single machine, unless their access mode says otherwise.
_UNSHARED = ("hyperdisk-balanced", "hyperdisk-ml")


def accepted(
    cloud: Cloud,
    call: Call,
    zone: str,
    accelerator: Accelerator,
    sent: list[Json],
    *,
    slices: int = 1,
    node: str = "",
) -> list[Json]:
    """Return the data disks as a node has them.

    Args:
        cloud: the cloud.
        call: names the project.
        zone: of the node.
        accelerator: the node's type.
        sent: the request's `dataDisks`.
        slices: how many nodes get them.
        node: full name of a node that has some of them already.

    Raises:
        ApiError: 404 for a disk that does not exist, 400 for one that the node cannot have.
    """
    if len(sent) > accelerator.disk_count:
        raise invalid(
            f"{accelerator.name} takes at most {accelerator.disk_count} data disks a host, got "
            f"{len(sent)}."
        )
    paths = [
        compute_disks.require_disk(cloud, call.project, disk.get("sourceDisk", "")) for disk in sent
    ]
    machines = accelerator.hosts * slices
    for path, disk in zip(paths, sent, strict=True):
        if f"/zones/{zone}/" not in path:
            raise invalid(f"Disk '{path}' is not in zone {zone}.")
        if paths.count(path) > 1:
            raise invalid(f"Disk '{path}' is given more than once.")
        _require_kind(load(cloud, path), path, accelerator)
        if disk.get("mode", _WRITE) == _WRITE and machines > 1:
            raise invalid(
                f"Disk '{path}' cannot be attached in READ_WRITE mode: there are {machines} TPU "
                "workers, and only one may write. Use READ_ONLY."
            )
        _require_free(cloud, path, disk, machines, node)
    return [{"mode": _WRITE} | disk for disk in sent]


def _require_kind(record: Json, path: str, accelerator: Accelerator) -> None:
    kind = last(record["type"])
    if kind not in accelerator.disks:
        raise invalid(
            f"Disk '{path}' is a {kind}; {accelerator.name} takes {', '.join(accelerator.disks)}."
        )


def _require_free(cloud: Cloud, path: str, disk: Json, machines: int, node: str) -> None:
    record = load(cloud, path)
    others = [user for user in holders(cloud, path) if user != node]
    if disk.get("mode", _WRITE) == _WRITE and others:
        raise in_use(path, others[0])
    for other in others:
        if _writes(cloud, other, path):
            raise in_use(path, other)
    shared = machines > 1 or bool(others)
    if (
        shared
        and last(record["type"]) in _UNSHARED
        and record.get("accessMode") != "READ_ONLY_MANY"
    ):
        raise invalid(
            f"Disk '{path}' can be attached to one machine only: its access mode is "
            f"{record.get('accessMode', 'READ_WRITE_SINGLE')}, not READ_ONLY_MANY."
        )


def _writes(cloud: Cloud, user: str, path: str) -> bool:
    """Return whether a node or an instance may write to a disk that it has."""
    node = cloud.store.get(NODE, user)
    if node is not None:
        return any(
            disk.get("mode", _WRITE) == _WRITE
            for disk in node.get("dataDisks", [])
            if last(disk["sourceDisk"]) == last(path)
        )
    instance = cloud.store.get(STORE, user) or {}
    return any(
        disk["mode"] == _WRITE
        for disk in instance.get("disks", [])
        if disk.get("source") == url_of(path)
    )
