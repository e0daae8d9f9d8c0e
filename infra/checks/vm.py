"""The VM: how it is bought, watched over and kept."""

from __future__ import annotations

from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import Problem
from infra.settings.training import RunOn
from infra.settings.vm import HostMaintenance, VmCapacity


def check_vm_capacity(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """What Google does with the VM fits how it is paid for."""
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
    """Integrity monitoring compares what the vTPM has measured."""
    shielded = settings.vm.shielded
    if shielded.integrity_monitoring and not shielded.vtpm:
        yield Problem(
            "vm.shielded.integrityMonitoring",
            True,
            "needs the vTPM, but vm.shielded.vtpm is false",
            "Set both to the same value",
        )


def check_managed(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """A group of instances makes each of its boot disks from the image."""
    vm = settings.vm
    if vm.managed is not None and vm.keep_boot_disk:
        yield Problem(
            "vm.keepBootDisk",
            True,
            "contradicts vm.managed: the group makes a new boot disk for every new VM",
            "Remove one of the two",
        )


def check_ops_agent(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """The agent is installed by the start-up script, which only the trainer's machine has."""
    if settings.vm.ops_agent and settings.training.run_on is not RunOn.VM:
        yield Problem(
            "vm.opsAgent",
            True,
            "is installed by the start-up script, which the VM has only if it runs the trainer "
            f"(training.runOn is {settings.training.run_on})",
            "Remove it, or set training.runOn: vm",
        )
