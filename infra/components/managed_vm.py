"""The VM that runs the trainer, kept by a managed instance group of one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any

import pulumi

from infra.components import compute, mark
from infra.components.machine import AGENT, JOBS, LIMITS, LOCK, custom_timeouts
from infra.components.vm import (
    VmArgs,
    identity,
    interfaces,
    metadata,
    scheduling,
    shielded,
)
from infra.cost.running import COST_NOTE
from infra.settings.vm import ManagedSettings

# Neither a new release's packages nor other prices make a VM anew.
_KEPT = (LOCK, COST_NOTE)
# Nor does a new release's agent, unless the VM has just been given one to do more than train.
_TASKS = (LIMITS, JOBS)
HEALTH_PORT = 8090
"""Where the start-up script serves the VM's health (startup/vm.sh); free on Debian."""


@dataclass(frozen=True)
class ManagedVmArgs:
    """The group to declare.

    Attributes:
        vm: the arguments of the VM in it.
        health_ranges: the addresses that Google's health checks come from; none if somebody else
            lets them in.
    """

    vm: VmArgs
    managed: ManagedSettings
    health_ranges: Sequence[IPv4Network]


class ManagedVm(pulumi.ComponentResource):
    """A VM that comes back under the same name and resumes training from its checkpoint.

    Its group recreates it whenever it is not running (preempted, stopped, deleted, crashed) and,
    if it runs the trainer, when it fails its health check. A change of settings replaces what it
    touches instead of updating it: Google refuses to update a group that it has changed itself in
    the meantime, and another job needs a new VM anyway.
    """

    name: pulumi.Output[str]

    def __init__(
        self, name: str, args: ManagedVmArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:ManagedVm", name, None, opts)
        vm = args.vm
        own = pulumi.ResourceOptions(
            parent=self,
            depends_on=list(vm.parts_require),
            custom_timeouts=custom_timeouts(vm.settings.timeouts),
        )
        template = self._template(args, own)
        check = self._health(args, own) if vm.startup_script else None
        manager = compute.InstanceGroupManager(
            "group",
            name=vm.name,
            project=vm.project,
            zone=vm.zone,
            base_instance_name=vm.name,
            versions=[{"instance_template": template.self_link}],
            auto_healing_policies=self._healing(args, check),
            opts=pulumi.ResourceOptions.merge(
                own,
                pulumi.ResourceOptions(
                    delete_before_replace=True,
                    replace_on_changes=["*"],
                    depends_on=list(vm.requires),
                ),
            ),
        )
        # VMs that a group makes have random names; one that is added by name keeps it. It counts
        # towards the group's size, which is therefore not set above.
        member = compute.PerInstanceConfig(
            "instance",
            name=f"{vm.name}-0",
            project=vm.project,
            zone=vm.zone,
            instance_group_manager=manager.name,
            preserved_state={"metadata": {"group": vm.name}},
            opts=pulumi.ResourceOptions.merge(
                own, pulumi.ResourceOptions(delete_before_replace=True, deleted_with=manager)
            ),
        )
        self.name = member.name
        self.register_outputs({"name": self.name})

    def _healing(self, args: ManagedVmArgs, check: compute.HealthCheck | None) -> Any:
        if check is None:
            return None
        delay = args.managed.initial_delay_seconds
        return {"health_check": check.id, "initial_delay_sec": delay}

    def _template(
        self, args: ManagedVmArgs, own: pulumi.ResourceOptions
    ) -> compute.InstanceTemplate:
        """Declare the template, which never changes: another one gets another name.

        The name is a digest of the content, so that an update that was killed while Google made the
        template finds it again.
        """
        vm = args.vm
        disk: Any = {
            "boot": True,
            "auto_delete": True,
            "source_image": vm.settings.image,
            "disk_size_gb": vm.settings.boot_disk_gib,
            "disk_type": vm.settings.boot_disk_type.value,
        }
        health = {"health-port": str(HEALTH_PORT)} if vm.startup_script else {}
        script = {"startup-script": vm.startup_script} if vm.startup_script else {}
        told = {**metadata(vm), **health}
        kept = _KEPT if any(task in told for task in _TASKS) else (*_KEPT, AGENT)
        named = {key: value for key, value in told.items() if key not in kept}
        content = [
            *(vm.settings.machine_type, disk, interfaces(vm), scheduling(vm.settings)),
            *(shielded(vm.settings), identity(vm), [vm.tag], named, dict(vm.labels)),
        ]
        return compute.InstanceTemplate(
            "template",
            name=pulumi.Output.json_dumps(content, sort_keys=True).apply(
                lambda text: f"{vm.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
            ),
            project=vm.project,
            machine_type=vm.settings.machine_type,
            disks=[disk],
            network_interfaces=interfaces(vm),
            scheduling=scheduling(vm.settings),
            shielded_instance_config=shielded(vm.settings),
            service_account=identity(vm),
            tags=[vm.tag],
            metadata={**told, **script},
            labels=mark.labels(vm.labels),
            # Like a VM without a group (`keep_script`), it keeps the script that it was made with,
            # and what that installs.
            opts=pulumi.ResourceOptions.merge(
                own,
                pulumi.ResourceOptions(
                    ignore_changes=[
                        *mark.KEPT_LABEL,
                        *(f'metadata["{key}"]' for key in ("startup-script", *kept)),
                    ]
                ),
            ),
        )

    def _let_in(self, args: ManagedVmArgs, own: pulumi.ResourceOptions) -> None:
        """Open the health port to Google's health checks alone."""
        vm = args.vm
        compute.Firewall(
            "allow-health",
            name=f"{vm.name}-health",
            project=vm.project,
            network=vm.network,
            direction="INGRESS",
            source_ranges=[str(block) for block in args.health_ranges],
            target_service_accounts=[vm.account],
            allows=[{"protocol": "tcp", "ports": [str(HEALTH_PORT)]}],
            opts=pulumi.ResourceOptions.merge(
                own, pulumi.ResourceOptions(delete_before_replace=True)
            ),
        )

    def _health(self, args: ManagedVmArgs, own: pulumi.ResourceOptions) -> compute.HealthCheck:
        vm, managed = args.vm, args.managed
        if args.health_ranges:
            self._let_in(args, own)
        return compute.HealthCheck(
            "health",
            name=vm.name,
            project=vm.project,
            check_interval_sec=managed.check_interval_seconds,
            timeout_sec=min(5, managed.check_interval_seconds),
            unhealthy_threshold=managed.failed_checks,
            http_health_check={"port": HEALTH_PORT},
            description=mark.description(),
            # The group refers to it by its name, which stays the same.
            opts=pulumi.ResourceOptions.merge(
                own, pulumi.ResourceOptions(ignore_changes=mark.KEPT_DESCRIPTION)
            ),
        )
