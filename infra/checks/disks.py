"""Checks of the data disks of TPU VMs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from infra.catalog.model import Accelerator
from infra.checks.context import Context, one_of
from infra.settings import StackSettings
from infra.settings.disks import DataDisk, DiskMode, TpuDiskType
from infra.settings.problems import UNSET, Problem, misplaced
from infra.settings.tpu import Architecture

_SOURCE = re.compile(r"projects/[^/]+/zones/(?P<zone>[^/]+)/disks/[a-z]([-a-z0-9]*[a-z0-9])?")
_SNAPSHOT = re.compile(r"projects/[^/]+/global/snapshots/[a-z]([-a-z0-9]*[a-z0-9])?")
# The TPU's name comes before it, so the first character may be any.
_NAME = re.compile(r"[-a-z0-9]*[a-z0-9]")
# Names of disks have 63 characters; "-" and four of the fingerprint come after a disk's own.
_LONGEST = 63 - len("-0123")


def check_data_disks(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that every disk can be made or is there, and that the TPU can attach it as asked."""
    disks = settings.tpu.data_disks
    if settings.architecture is not Architecture.VM or not disks:
        return
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    if accelerator and len(disks) > accelerator.data_disks:
        yield Problem(
            "tpu.dataDisks",
            len(disks),
            f"disks are more than a host of a {accelerator.name} takes",
            f"Use at most {accelerator.data_disks}",
        )
    taken: Counter[str] = Counter()
    for number, disk in enumerate(disks):
        at = f"tpu.dataDisks[{number}]"
        yield from _check_kind(disk, at)
        if disk.source:
            yield from _check_source(disk.source, at, settings)
        elif disk.name:
            yield from _check_own(disk, at, settings, context)
        if accelerator:
            yield from _check_type(disk, at, accelerator)
            yield from _check_mode(disk, at, accelerator, settings)
        key = disk.source or disk.name or ""
        taken[key] += 1
        if key and taken[key] == 2:
            yield Problem(
                f"{at}.{'source' if disk.source else 'name'}",
                key,
                "is there twice",
                "Name each disk once",
            )


def _check_kind(disk: DataDisk, at: str) -> Iterator[Problem]:
    """Check that it is clear whether the stack makes the disk."""
    if not disk.name and not disk.source:
        yield Problem(
            f"{at}.name",
            UNSET,
            "and no source either",
            "Set name and sizeGib of a disk to make, or source of one that is there already",
        )
    if not disk.source:
        return
    yield from misplaced(
        {
            f"{at}.name": disk.name,
            f"{at}.sizeGib": disk.size_gib,
            f"{at}.type": disk.type and disk.type.value,
            f"{at}.snapshot": disk.snapshot,
        },
        f"is of a disk to make, but {at}.source names one that is there already",
        "Remove one of the two",
    )


def _check_source(source: str, at: str, settings: StackSettings) -> Iterator[Problem]:
    match = _SOURCE.fullmatch(source)
    if match is None:
        yield Problem(
            f"{at}.source",
            source,
            "is no disk's full name",
            f"Use one like projects/{settings.project}/zones/{settings.zone}/disks/corpus",
        )
    elif match["zone"] != settings.zone:
        yield Problem(
            f"{at}.source",
            source,
            f"is not in the TPU's zone {settings.zone}",
            "Use a disk of that zone; a snapshot makes one from a disk elsewhere",
        )


def _check_own(
    disk: DataDisk, at: str, settings: StackSettings, context: Context
) -> Iterator[Problem]:
    name = disk.name or ""
    longest = max(map(len, context.names.tpus(settings.tpu.slices))) + len("-")
    if not _NAME.fullmatch(name):
        yield Problem(
            f"{at}.name",
            name,
            "is no name for a disk (lower-case letters, digits and hyphens, no hyphen last)",
            "Set one like corpus",
        )
    elif longest + len(name) > _LONGEST:
        yield Problem(
            f"{at}.name",
            name,
            f"has {len(name)} characters, too many with the TPU's name before them",
            f"Set one of at most {_LONGEST - longest}",
        )
    if disk.size_gib is None and disk.snapshot is None:
        yield Problem(
            f"{at}.sizeGib", UNSET, "is required for a disk to make", "Set its size in GiB"
        )
    if disk.snapshot and not _SNAPSHOT.fullmatch(disk.snapshot):
        yield Problem(
            f"{at}.snapshot",
            disk.snapshot,
            "is no snapshot's full name",
            f"Use one like projects/{settings.project}/global/snapshots/corpus-1",
        )
    if disk.mode is DiskMode.READ_ONLY and disk.snapshot is None:
        yield Problem(
            f"{at}.mode",
            disk.mode.value,
            "would leave the new disk empty for ever",
            "Set snapshot to begin with, source to use a disk with data on it, or read-write",
        )


def _check_type(disk: DataDisk, at: str, accelerator: Accelerator) -> Iterator[Problem]:
    if disk.type and not disk.source and disk.type.value not in accelerator.disk_types:
        yield Problem(
            f"{at}.type",
            disk.type.value,
            f"is no disk that a {accelerator.name} takes",
            f"Use {one_of(accelerator.disk_types)}",
        )


def _check_mode(
    disk: DataDisk, at: str, accelerator: Accelerator, settings: StackSettings
) -> Iterator[Problem]:
    """Check that one machine alone writes to a disk: all hosts of a TPU get the same disks."""
    tpu = settings.tpu
    cure = "Use read-only, with a disk that has its data already"
    if disk.mode is DiskMode.READ_WRITE:
        why = ""
        if accelerator.hosts > 1:
            why = f"is for a TPU with one host, but a {accelerator.name} has {accelerator.hosts}"
        elif tpu.slices > 1 and disk.source:
            why = f"is for one TPU, but there are {tpu.slices} slices"
            cure += ", or name for a new disk for each slice"
        elif tpu.slices > 1 and tpu.queue:
            why = "is for one TPU, but all slices of a request in the queue have the same disks"
        if why:
            yield Problem(f"{at}.mode", disk.mode.value, why, cure)
        return
    shared = accelerator.hosts * tpu.slices > 1
    kind = disk.type.value if disk.type else accelerator.disk_types[0]
    if shared and not disk.source and kind == TpuDiskType.HYPERDISK_BALANCED.value:
        yield Problem(
            f"{at}.type",
            kind if disk.type else UNSET,
            f"{'' if disk.type else f'and would be {kind}, which '}can be attached to one machine "
            f"only, but there are {accelerator.hosts * tpu.slices}",
            f"Use {TpuDiskType.HYPERDISK_ML.value}",
        )
