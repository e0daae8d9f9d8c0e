"""Checks of the VM and of the TPU's data disks."""

import re
from collections import Counter
from collections.abc import Iterator

from tpu_infra.catalog.entries import Accelerator
from tpu_infra.checks.context import Context, nearest, one_of
from tpu_infra.settings import StackSettings, machines
from tpu_infra.settings.base import UNSET, Problem, misplaced

_IMAGE = re.compile(r"[a-z0-9.:-]+/[a-z0-9-]+")


def check_machine_type(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the machine type exists and has enough memory for the model.

    The trainer initialises the model on the VM before it moves to the TPU: too little memory ends
    it minutes after the TPU has begun to cost.
    """
    types = context.catalog.machine_types
    wanted = settings.vm.machine_type
    if not settings.has_vm and not settings.is_compute:
        return
    machine = types.get(wanted)
    needed = settings.training.model_memory_gib
    if machine is None and not context.catalog.may_be_machine_type(wanted):
        yield Problem(
            "vm.machineType", wanted, "is not a machine type in the catalog", nearest(wanted, types)
        )
    elif machine and not settings.trains_on_tpu and machine.memory_gib < needed:
        enough = [name for name, other in types.items() if other.memory_gib >= needed]
        enough.sort(key=lambda name: (types[name].memory_gib, types[name].vcpus))
        cure = f"Use {' or '.join(enough[:2])}" if enough else "No machine type is large enough"
        why = (
            f"has {machine.memory_gib:g} GiB of memory, but the model needs {needed:g} GiB "
            "(training.modelMemoryGib)"
        )
        yield Problem("vm.machineType", wanted, why, cure)


def check_vm(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse what needs the VM, if there is none."""
    vm = settings.vm
    if vm.create or settings.is_compute:
        return
    if settings.is_node:
        cure = "Remove it, or use architecture vm with training.runOn: tpu"
        yield Problem("vm.create", False, "leaves nothing that drives the TPU Node", cure)
    elif not settings.trains_on_tpu:
        why = f"leaves nothing that trains, because training.runOn is {settings.training.run_on}"
        yield Problem("vm.create", False, why, "Set training.runOn: tpu, or remove it")
    others = {f"vm.{key}": value for key, value in vm.written().items() if key != "create"}
    yield from misplaced(others, "is for a VM, but vm.create is false", "Remove one of the two")


def check_image(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the image is named by its family, so that a new VM gets the newest one."""
    if not _IMAGE.fullmatch(settings.vm.image):
        why, cure = "is not PROJECT/FAMILY", "Use one like debian-cloud/debian-12"
        yield Problem("vm.image", settings.vm.image, why, cure)


def check_vm_capacity(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that what Google does with the VM suits how it is bought."""
    vm = settings.vm
    if vm.termination_action is not None and vm.capacity is not machines.VmCapacity.SPOT:
        why = f"is for a spot VM, but vm.capacity is {vm.capacity}"
        cure = "Set vm.capacity: spot, or remove it"
        yield Problem("vm.terminationAction", vm.termination_action.value, why, cure)


def check_shielded(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that integrity monitoring has the vTPM, whose measurements it compares."""
    shielded = settings.vm.shielded
    if shielded.integrity_monitoring and not shielded.vtpm:
        why, cure = "needs the vTPM, but vm.shielded.vtpm is false", "Set both to the same value"
        yield Problem("vm.shielded.integrityMonitoring", True, why, cure)


def check_instance_group(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse a lasting boot disk in a group, which makes every boot disk from the image."""
    vm = settings.vm
    if vm.instance_group is not None and vm.keep_boot_disk:
        why = "contradicts vm.instanceGroup: the group creates a new boot disk for every new VM"
        yield Problem("vm.keepBootDisk", True, why, "Remove one of the two")


def check_ops_agent(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the VM has the start-up script, which installs the agent."""
    if settings.vm.ops_agent and settings.trains_on_tpu:
        why = (
            "is installed by the startup script, which the VM only has if it runs the trainer "
            f"(training.runOn is {settings.training.run_on})"
        )
        yield Problem("vm.opsAgent", True, why, "Remove it, or set training.runOn: vm")


def warn_about_limits(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of a VM that keeps limits, and stays away once Google has taken it."""
    vm = settings.vm
    stays_away = vm.capacity is not machines.VmCapacity.ON_DEMAND and vm.instance_group is None
    if settings.limits.any and stays_away and not settings.trains_on_tpu:
        yield (
            f"limits: the VM applies them, but a {vm.capacity} VM doesn't come back after a "
            "preemption, and you keep paying for its TPU. Set vm.instanceGroup: {}, or run "
            f"`tpustack ci limits --stack {context.stack}` each hour, which applies "
            "limits.timeToLiveHours only (docs/cost.md#limits)"
        )


# --- Data disks of TPU VMs

_SOURCE = re.compile(r"projects/[^/]+/zones/(?P<zone>[^/]+)/disks/[a-z]([-a-z0-9]*[a-z0-9])?")
_SNAPSHOT = re.compile(r"projects/[^/]+/global/snapshots/[a-z]([-a-z0-9]*[a-z0-9])?")
# In the middle of the whole name, so any character may be anywhere.
_NAME = re.compile(r"[-a-z0-9]+")
# Names of disks have 63 characters; "-" and four of the fingerprint come after a disk's own.
_LONGEST = 63 - len("-0123")


def check_data_disks(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that every disk can be made or is there, and that the TPU can attach it as asked.

    All hosts of a TPU get the same disks, and so do all slices of a request in the queue: what one
    of several machines may not do with a disk, no setting may ask of any.
    """
    disks = settings.tpu.data_disks
    if settings.is_node or settings.is_compute or not disks:
        return
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    if accelerator and len(disks) > accelerator.data_disks:
        why = f"disks are more than a host of a {accelerator.name} supports"
        yield Problem("tpu.dataDisks", len(disks), why, f"Use at most {accelerator.data_disks}")
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
            why, cure = "is listed twice", "Name each disk once"
            yield Problem(f"{at}.{'source' if disk.source else 'name'}", key, why, cure)


def _check_kind(disk: machines.DataDisk, at: str) -> Iterator[Problem]:
    """Check that it is clear whether the stack makes the disk."""
    if not disk.name and not disk.source:
        cure = "Set name and sizeGib of a new disk, or source of an existing one"
        yield Problem(f"{at}.name", UNSET, "and no source either", cure)
    if not disk.source:
        return
    yield from misplaced(
        {
            f"{at}.name": disk.name,
            f"{at}.sizeGib": disk.size_gib,
            f"{at}.type": disk.type and disk.type.value,
            f"{at}.snapshot": disk.snapshot,
        },
        f"is for a new disk, but {at}.source names an existing one",
        "Remove one of the two",
    )


def _check_source(source: str, at: str, settings: StackSettings) -> Iterator[Problem]:
    match = _SOURCE.fullmatch(source)
    if match is None:
        cure = f"Use one like projects/{settings.project}/zones/{settings.zone}/disks/corpus"
        yield Problem(f"{at}.source", source, "is not the full name of a disk", cure)
    elif match["zone"] != settings.zone:
        cure = "Use a disk of that zone, or a snapshot of a disk elsewhere"
        yield Problem(f"{at}.source", source, f"is not in the TPU's zone {settings.zone}", cure)


def _check_own(
    disk: machines.DataDisk, at: str, settings: StackSettings, context: Context
) -> Iterator[Problem]:
    name = disk.name or ""
    longest = max(map(len, context.names.tpus(settings.tpu.slices))) + len("-")
    if not _NAME.fullmatch(name):
        why = "is not a valid disk name (lower-case letters, digits and hyphens)"
        yield Problem(f"{at}.name", name, why, "Set one like corpus")
    elif longest + len(name) > _LONGEST:
        why = f"has {len(name)} characters, too many after the TPU's name"
        yield Problem(f"{at}.name", name, why, f"Set one of at most {_LONGEST - longest}")
    if disk.size_gib is None and disk.snapshot is None:
        yield Problem(f"{at}.sizeGib", UNSET, "is required for a new disk", "Set its size in GiB")
    if disk.snapshot and not _SNAPSHOT.fullmatch(disk.snapshot):
        cure = f"Use one like projects/{settings.project}/global/snapshots/corpus-1"
        yield Problem(f"{at}.snapshot", disk.snapshot, "is not the full name of a snapshot", cure)
    if disk.mode is machines.DiskMode.READ_ONLY and disk.snapshot is None:
        why = "would leave the new disk empty forever"
        cure = "Set snapshot, source for a disk with data, or mode: read-write"
        yield Problem(f"{at}.mode", disk.mode.value, why, cure)


def _check_type(disk: machines.DataDisk, at: str, accelerator: Accelerator) -> Iterator[Problem]:
    if disk.type and not disk.source and disk.type.value not in accelerator.disk_types:
        why = f"is not a disk type that a {accelerator.name} supports"
        yield Problem(f"{at}.type", disk.type.value, why, f"Use {one_of(accelerator.disk_types)}")


def _check_mode(
    disk: machines.DataDisk, at: str, accelerator: Accelerator, settings: StackSettings
) -> Iterator[Problem]:
    """Check that one machine alone writes to a disk: all hosts of a TPU get the same disks."""
    tpu = settings.tpu
    cure = "Use read-only, with a disk that already has its data"
    if disk.mode is machines.DiskMode.READ_WRITE:
        why = ""
        if accelerator.hosts > 1:
            why = f"is for a TPU with one host, but a {accelerator.name} has {accelerator.hosts}"
        elif tpu.slices > 1 and disk.source:
            why = f"is for one TPU, but there are {tpu.slices} slices"
            cure += ", or name for a new disk for each slice"
        elif tpu.slices > 1 and tpu.queue:
            why = "is for one TPU, but all slices of a queued resource have the same disks"
        if why:
            yield Problem(f"{at}.mode", disk.mode.value, why, cure)
        return
    shared = accelerator.hosts * tpu.slices > 1
    kind = disk.type.value if disk.type else accelerator.disk_types[0]
    if shared and not disk.source and kind == machines.TpuDiskType.HYPERDISK_BALANCED.value:
        yield Problem(
            f"{at}.type",
            kind if disk.type else UNSET,
            f"{'' if disk.type else f'and would be {kind}, which '}can be attached to one machine "
            f"only, but there are {accelerator.hosts * tpu.slices}",
            f"Use {machines.TpuDiskType.HYPERDISK_ML.value}",
        )
