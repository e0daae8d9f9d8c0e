"""Checks of the VM: its size and image, how it is bought, protected and kept."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.context import Context, nearest
from infra.settings import StackSettings
from infra.settings.problems import Problem
from infra.settings.training import RunOn
from infra.settings.vm import HostMaintenance, VmCapacity

_IMAGE = re.compile(r"[a-z0-9.:-]+/[a-z0-9-]+")


def check_machine_type(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the machine type exists and has enough memory for the model."""
    types = context.catalog.machine_types
    wanted = settings.vm.machine_type
    machine = types.get(wanted)
    needed = settings.training.model_memory_gib
    if machine is None and not context.catalog.may_be_machine_type(wanted):
        yield Problem(
            "vm.machineType", wanted, "is no machine type in the catalog", nearest(wanted, types)
        )
    elif machine and settings.training.run_on is RunOn.VM and machine.memory_gib < needed:
        enough = [name for name, other in types.items() if other.memory_gib >= needed]
        enough.sort(key=lambda name: (types[name].memory_gib, types[name].vcpus))
        cure = f"Use {' or '.join(enough[:2])}" if enough else "No machine type is large enough"
        yield Problem(
            "vm.machineType",
            wanted,
            f"has {machine.memory_gib:g} GiB of memory, but the model needs {needed:g} GiB "
            "(training.modelMemoryGib)",
            cure,
        )


def check_image(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the image is named by its family, so that a new VM gets the newest one."""
    if not _IMAGE.fullmatch(settings.vm.image):
        yield Problem(
            "vm.image",
            settings.vm.image,
            "is not PROJECT/FAMILY",
            "Use one like debian-cloud/debian-12",
        )


def check_vm_capacity(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that what Google does with the VM suits how it is bought."""
    vm = settings.vm
    if vm.termination_action is not None and vm.capacity is not VmCapacity.SPOT:
        yield Problem(
            "vm.terminationAction",
            vm.termination_action.value,
            f"is of a spot VM, but vm.capacity is {vm.capacity}",
            "Set vm.capacity: spot, or remove it",
        )
    if vm.host_maintenance is HostMaintenance.MIGRATE and vm.capacity is not VmCapacity.ON_DEMAND:
        yield Problem(
            "vm.hostMaintenance",
            vm.host_maintenance.value,
            f"is not possible: Google migrates no {vm.capacity} VM",
            "Set terminate, or remove it",
        )


def check_shielded(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that integrity monitoring has the vTPM, whose measurements it compares."""
    shielded = settings.vm.shielded
    if shielded.integrity_monitoring and not shielded.vtpm:
        yield Problem(
            "vm.shielded.integrityMonitoring",
            True,
            "needs the vTPM, but vm.shielded.vtpm is false",
            "Set both to the same value",
        )


def check_instance_group(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse a lasting boot disk in a group, which makes every boot disk from the image."""
    vm = settings.vm
    if vm.instance_group is not None and vm.keep_boot_disk:
        yield Problem(
            "vm.keepBootDisk",
            True,
            "contradicts vm.instanceGroup: the group makes a new boot disk for every new VM",
            "Remove one of the two",
        )


def check_ops_agent(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the VM has the start-up script, which installs the agent."""
    if settings.vm.ops_agent and settings.training.run_on is not RunOn.VM:
        yield Problem(
            "vm.opsAgent",
            True,
            "is installed by the start-up script, which the VM has only if it runs the trainer "
            f"(training.runOn is {settings.training.run_on})",
            "Remove it, or set training.runOn: vm",
        )


def warn_about_limits(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of a VM that keeps limits, and stays away once Google has taken it."""
    vm = settings.vm
    stays_away = vm.capacity is not VmCapacity.ON_DEMAND and vm.instance_group is None
    if settings.limits.any and stays_away and settings.training.run_on is RunOn.VM:
        yield (
            f"limits: the VM keeps them, and a VM of vm.capacity {vm.capacity} stays away once "
            "Google has taken it, while its TPU keeps costing. Set vm.instanceGroup: {}, or run "
            f"`tpustack ci limits --stack {context.stack}` each hour, which keeps "
            "limits.timeToLiveHours alone (docs/limits.md)"
        )
