"""The VM that runs the trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pulumi
import pulumi_gcp as gcp

from infra.components.machine import CLOUD_PLATFORM, replace_for_another_job
from infra.settings.vm import VmCapacity, VmSettings


@dataclass(frozen=True)
class VmArgs:
    """`requires` is what the VM waits for although none of its properties names it.

    `comes_back` lets an update that refreshes start a VM that was turned off.
    """

    project: str
    zone: str
    name: str
    settings: VmSettings
    network: pulumi.Input[str]
    subnetwork: pulumi.Input[str]
    account: pulumi.Input[str]
    startup_script: str | None
    metadata: Mapping[str, pulumi.Input[str]]
    labels: Mapping[str, str]
    comes_back: bool
    requires: tuple[pulumi.Resource, ...]


class Vm(pulumi.ComponentResource):
    """A VM with the `cloud-platform` scope and an account of its own, without a public address.

    Deliberately does not wait for the TPU: the trainer looks its endpoint up by name and waits.
    """

    name: pulumi.Output[str]

    def __init__(self, name: str, args: VmArgs, opts: pulumi.ResourceOptions | None = None) -> None:
        super().__init__("tpu-stack:infra:Vm", name, None, opts)
        vm = args.settings
        spot = vm.capacity is VmCapacity.SPOT
        instance = gcp.compute.Instance(
            "instance",
            name=args.name,
            project=args.project,
            zone=args.zone,
            machine_type=vm.machine_type,
            boot_disk={
                "auto_delete": True,
                "initialize_params": {
                    "image": vm.image,
                    "size": vm.boot_disk_gib,
                    "type": vm.boot_disk_type.value,
                },
            },
            network_interfaces=[
                {
                    "network": args.network,
                    "subnetwork": args.subnetwork,
                    # An access configuration without an address asks for any public address.
                    "access_configs": [{}] if vm.public_ip else [],
                }
            ],
            scheduling={
                "provisioning_model": "SPOT" if spot else "STANDARD",
                "preemptible": spot,
                "automatic_restart": not spot,
                "on_host_maintenance": "TERMINATE" if spot else "MIGRATE",
                **({"instance_termination_action": "STOP"} if spot else {}),
            },
            shielded_instance_config={
                "enable_secure_boot": True,
                "enable_vtpm": True,
                "enable_integrity_monitoring": True,
            },
            service_account={"email": args.account, "scopes": [CLOUD_PLATFORM]},
            metadata={**args.metadata, "enable-oslogin": "TRUE"},
            metadata_startup_script=args.startup_script,
            labels=dict(args.labels),
            desired_status="RUNNING" if args.comes_back else None,
            allow_stopping_for_update=True,
            opts=pulumi.ResourceOptions.merge(
                pulumi.ResourceOptions(
                    parent=self,
                    delete_before_replace=True,
                    depends_on=list(args.requires),
                    # The script runs at boot alone: a VM keeps the one that it was made with, so
                    # that a new release replaces no VM, unless it gets another task.
                    ignore_changes=["metadataStartupScript"],
                    replacement_trigger=_task(args),
                ),
                replace_for_another_job(args.metadata),
            ),
        )
        self.name = instance.name
        self.register_outputs({"name": self.name})


def _task(args: VmArgs) -> str:
    """What the start-up script does."""
    if args.startup_script is None:
        return "nothing"
    return "train and watch" if "watchdog" in args.metadata else "train"
