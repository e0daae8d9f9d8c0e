"""The VM that runs the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi

from infra.components import compute
from infra.components.machine import (
    CLOUD_PLATFORM,
    Machine,
    custom_timeouts,
    replace_for_another_job,
)
from infra.settings.vm import HostMaintenance, TerminationAction, VmCapacity, VmSettings


@dataclass(frozen=True)
class VmArgs(Machine):
    """The VM to declare.

    Attributes:
        startup_script: None for a VM that runs nothing.
        comes_back: whether an update that refreshes starts a VM that was turned off.
    """

    settings: VmSettings
    startup_script: str | None
    comes_back: bool


class Vm(pulumi.ComponentResource):
    """A VM with the `cloud-platform` scope and an account of its own, without a public address.

    Deliberately does not wait for the TPU: the trainer looks its endpoint up by name and waits.
    """

    name: pulumi.Output[str]

    def __init__(self, name: str, args: VmArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("tpu-stack:infra:Vm", name, None, opts)
        vm = args.settings
        own = pulumi.ResourceOptions(
            parent=self,
            delete_before_replace=True,
            depends_on=list(args.requires),
            custom_timeouts=custom_timeouts(vm.timeouts),
        )
        instance = compute.Instance(
            "instance",
            name=args.name,
            project=args.project,
            zone=args.zone,
            machine_type=vm.machine_type,
            boot_disk=self._boot_disk(args),
            network_interfaces=interfaces(args),
            scheduling=scheduling(vm),
            shielded_instance_config=shielded(vm),
            service_account=identity(args),
            metadata=metadata(args),
            metadata_startup_script=args.startup_script,
            labels=dict(args.labels),
            desired_status="RUNNING" if args.comes_back else None,
            allow_stopping_for_update=True,
            opts=pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions.merge(own, keep_script(args)),
                replace_for_another_job(args.metadata),
            ),
        )
        self.name = instance.name
        self.register_outputs({"name": self.name})

    def _boot_disk(self, args: VmArgs) -> Any:
        """A disk that comes and goes with the VM, or one of its own that outlives it."""
        vm = args.settings
        if not vm.keep_boot_disk:
            params = {
                "image": vm.image,
                "size": vm.boot_disk_gib,
                "type": vm.boot_disk_type.value,
            }
            return {"auto_delete": True, "initialize_params": params}
        disk = compute.Disk(
            "boot-disk",
            # Not the VM's name, which a disk has that comes and goes with it.
            name=f"{args.name}-boot",
            project=args.project,
            zone=args.zone,
            image=vm.image,
            size=vm.boot_disk_gib,
            type=vm.boot_disk_type.value,
            labels=dict(args.labels),
            opts=pulumi.ResourceOptions(
                parent=self,
                delete_before_replace=True,
                depends_on=list(args.parts_require),
                custom_timeouts=custom_timeouts(vm.timeouts),
            ),
        )
        return {"auto_delete": False, "source": disk.self_link}


def keep_script(args: VmArgs) -> pulumi.ResourceOptions:
    """The script runs at boot alone: a VM keeps the one that it was made with.

    So a new release replaces no VM, unless it gets another task.
    """
    return pulumi.ResourceOptions(
        ignore_changes=["metadataStartupScript"],
        replacement_trigger=_task(args),
    )


def interfaces(args: VmArgs) -> Any:
    """One interface, in the stack's subnet."""
    # An access configuration without an address asks for any public address.
    access: list[dict[str, str]] = [{}] if args.settings.public_ip else []
    return [{"network": args.network, "subnetwork": args.subnetwork, "access_configs": access}]


def scheduling(vm: VmSettings) -> Any:
    """What Google may do with the VM, and when."""
    stays = vm.capacity is VmCapacity.ON_DEMAND
    migrates = stays and vm.host_maintenance is not HostMaintenance.TERMINATE
    spot = vm.capacity is VmCapacity.SPOT
    action = vm.termination_action or TerminationAction.STOP
    return {
        "provisioning_model": "SPOT" if spot else "STANDARD",
        "preemptible": not stays,
        "automatic_restart": stays,
        "on_host_maintenance": "MIGRATE" if migrates else "TERMINATE",
        **({"instance_termination_action": action.value.upper()} if spot else {}),
    }


def shielded(vm: VmSettings) -> Any:
    """Shielded VM as the settings say."""
    return {
        "enable_secure_boot": vm.shielded.secure_boot,
        "enable_vtpm": vm.shielded.vtpm,
        "enable_integrity_monitoring": vm.shielded.integrity_monitoring,
    }


def identity(args: VmArgs) -> Any:
    """The stack's account; what it may do is for IAM to say, not for scopes."""
    return {"email": args.account, "scopes": [CLOUD_PLATFORM]}


def metadata(args: VmArgs) -> dict[str, pulumi.Input[str]]:
    """The job, and what the machine itself goes by."""
    login: dict[str, pulumi.Input[str]] = {
        "enable-oslogin": "TRUE" if args.settings.os_login else "FALSE"
    }
    agent = {"ops-agent": "true"} if args.settings.ops_agent else {}
    return {**args.metadata, **login, **agent}


def _task(args: VmArgs) -> str:
    """What the start-up script does."""
    if args.startup_script is None:
        return "nothing"
    return "train and watch" if "watchdog" in args.metadata else "train"
