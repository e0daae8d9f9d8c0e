"""The VM that runs the trainer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi

from infra.components import compute, mark
from infra.components.machine import (
    CLOUD_PLATFORM,
    JOBS,
    LIMITS,
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
    """A VM that runs as the stack's service account with the `cloud-platform` scope.

    It does not wait for the TPU, on purpose: the trainer looks up the endpoint by name and waits.
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
            ignore_changes=mark.KEPT_LABEL,
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
            tags=[args.tag],
            metadata=metadata(args),
            metadata_startup_script=args.startup_script,
            labels=mark.labels(args.labels),
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
        """Return a boot disk that is deleted with the VM, or declare one that outlives it."""
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
            # A boot disk that is deleted with its VM has the VM's name.
            name=f"{args.name}-boot",
            project=args.project,
            zone=args.zone,
            image=vm.image,
            size=vm.boot_disk_gib,
            type=vm.boot_disk_type.value,
            labels=mark.labels(args.labels),
            opts=pulumi.ResourceOptions(
                parent=self,
                delete_before_replace=True,
                depends_on=list(args.parts_require),
                custom_timeouts=custom_timeouts(vm.timeouts),
                ignore_changes=mark.KEPT_LABEL,
            ),
        )
        return {"auto_delete": False, "source": disk.self_link}


def keep_script(args: VmArgs) -> pulumi.ResourceOptions:
    """Keep a VM's start-up script, which runs only at boot, as long as its task stays the same.

    A new release thus replaces no VM.
    """
    return pulumi.ResourceOptions(
        ignore_changes=["metadataStartupScript"],
        replacement_trigger=_task(args),
    )


def interfaces(args: VmArgs) -> Any:
    """Return the VM's one interface, in the stack's subnet."""
    # An empty access configuration asks for a public address of Google's choice.
    access: list[dict[str, str]] = [{}] if args.settings.public_ip else []
    return [{"network": args.network, "subnetwork": args.subnetwork, "access_configs": access}]


def scheduling(vm: VmSettings) -> Any:
    """Return when Google may stop, move or restart the VM."""
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
    """Return the options of Shielded VM."""
    return {
        "enable_secure_boot": vm.shielded.secure_boot,
        "enable_vtpm": vm.shielded.vtpm,
        "enable_integrity_monitoring": vm.shielded.integrity_monitoring,
    }


def identity(args: VmArgs) -> Any:
    """Return the service account; IAM, not its scopes, limits what it may do."""
    return {"email": args.account, "scopes": [CLOUD_PLATFORM]}


def metadata(args: VmArgs) -> dict[str, pulumi.Input[str]]:
    """Return the job's metadata with the VM's own."""
    googles: dict[str, pulumi.Input[str]] = {
        "enable-oslogin": "TRUE" if args.settings.os_login else "FALSE",
        # The serial port can be read as long as the VM runs; Cloud Logging keeps it for 30 days
        # (cloud.google.com/compute/docs/troubleshooting/viewing-serial-port-output, 2026-11).
        "serial-port-logging-enable": "true" if args.settings.serial_port_logging else "false",
    }
    agent = {"ops-agent": "true"} if args.settings.ops_agent else {}
    return {**args.metadata, **googles, **agent}


def _task(args: VmArgs) -> str:
    """Return what the start-up script does; another task replaces the VM."""
    if args.startup_script is None:
        return "nothing"
    if JOBS in args.metadata:
        return "run jobs"
    return "train and watch" if LIMITS in args.metadata else "train"
