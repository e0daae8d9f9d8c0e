"""Settings of the data disks of TPU VMs."""

from __future__ import annotations

from pydantic import Field

from infra.settings.base import Section, StrEnum, Text


class TpuDiskType(StrEnum):
    """Kinds of disk that TPU VMs take; which of them depends on the TPU."""

    PD_BALANCED = "pd-balanced"
    HYPERDISK_BALANCED = "hyperdisk-balanced"
    HYPERDISK_ML = "hyperdisk-ml"


class DiskMode(StrEnum):
    """How a disk is attached."""

    READ_WRITE = "read-write"
    READ_ONLY = "read-only"


class DataDisk(Section):
    """A disk of the stack's own (`name`), or one that is there already (`source`)."""

    name: Text | None = None
    """Name of a disk to make; its full name begins with the TPU's name."""
    size_gib: int | None = Field(default=None, ge=10, le=65536)
    """Size of a disk to make, in GiB (10 to 65536). It can grow later, but not shrink. Required
    unless `snapshot` gives the size.
    """
    type: TpuDiskType | None = None
    """Type of a disk to make. The TPU's default if it is not set (pd-balanced up to v5p,
    hyperdisk-balanced for v6e).
    """
    snapshot: Text | None = None
    """Snapshot to make the disk from, for example projects/PROJECT/global/snapshots/NAME."""
    source: Text | None = None
    """An existing disk in the TPU's zone: projects/PROJECT/zones/ZONE/disks/NAME."""
    mode: DiskMode = DiskMode.READ_WRITE
    """read-write (for a TPU with one host), or read-only (for any number of hosts and slices)."""
