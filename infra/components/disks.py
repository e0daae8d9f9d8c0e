"""The data disks of TPU VMs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pulumi

from infra.components import compute, mark
from infra.settings.disks import DataDisk, DiskMode, TpuDiskType

_API_MODES = {DiskMode.READ_WRITE: "READ_WRITE", DiskMode.READ_ONLY: "READ_ONLY"}


@dataclass(frozen=True)
class DataDisksArgs:
    """The disks to declare.

    Attributes:
        tpus: the names of the slices.
        default_type: the type of disks that name none.
        requires: what a disk waits for although none of its properties names it.
    """

    project: str
    zone: str
    name: str
    tpus: tuple[str, ...]
    disks: tuple[DataDisk, ...]
    default_type: str
    labels: Mapping[str, str]
    requires: Sequence[pulumi.Resource] = ()


@dataclass(frozen=True)
class Attached:
    """A disk as the TPU API wants it."""

    source: str
    """`projects/P/zones/Z/disks/N`"""
    mode: str
    """`READ_WRITE` or `READ_ONLY`"""


class DataDisks:
    """Declares the stack's own disks and assigns them to TPUs.

    Each slice gets its own copy of a disk that is written to; all slices share one that is only
    read.
    """

    def __init__(self, args: DataDisksArgs, parent: pulumi.Resource) -> None:
        self.made: list[pulumi.Resource] = []
        """The disks that a TPU waits for: it refers to them by name."""
        self._args = args
        self._parent = parent
        shared = {
            disk: self._shared(disk) for disk in args.disks if disk.mode is DiskMode.READ_ONLY
        }
        self.of_each = tuple(
            tuple(
                shared.get(disk) or Attached(self._source(disk, tpu), _API_MODES[disk.mode])
                for disk in args.disks
            )
            for tpu in args.tpus
        )
        """The disks of every slice, in the order of the settings."""

    def _shared(self, disk: DataDisk) -> Attached:
        return Attached(self._source(disk, self._args.name), _API_MODES[disk.mode])

    def _source(self, disk: DataDisk, owner: str) -> str:
        if disk.source:
            return disk.source
        args = self._args
        kind = disk.type or args.default_type
        shared = disk.mode is DiskMode.READ_ONLY and kind == TpuDiskType.HYPERDISK_ML.value
        name = f"{owner}-{disk.name}-{_fingerprint(kind, disk.snapshot, shared=shared)}"
        slice_name = owner.removeprefix(args.name)
        self.made.append(
            compute.Disk(
                f"tpu{slice_name}-{disk.name}",
                name=name,
                project=args.project,
                zone=args.zone,
                size=disk.size_gib,
                type=str(kind),
                snapshot=disk.snapshot,
                access_mode="READ_ONLY_MANY" if shared else None,
                labels=mark.labels(args.labels),
                opts=pulumi.ResourceOptions(
                    parent=self._parent,
                    depends_on=list(args.requires),
                    ignore_changes=mark.KEPT_LABEL,
                ),
            )
        )
        return f"projects/{args.project}/zones/{args.zone}/disks/{name}"


def _fingerprint(kind: str, snapshot: str | None, *, shared: bool) -> str:
    """Return what differs for another disk, which is made and attached before the old one goes."""
    return hashlib.sha256(f"{kind} {snapshot or ''} {shared}".encode()).hexdigest()[:4]
