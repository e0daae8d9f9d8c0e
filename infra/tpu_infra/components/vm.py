"""The VM that runs the trainer, alone or in a managed instance group of one."""

from __future__ import annotations

from typing import Any

import pulumi
import pulumi_gcp as gcp

from tpu_core.contract import Metadata, Port
from tpu_infra import apis, names
from tpu_infra.components import machine
from tpu_infra.components.identity import Identity
from tpu_infra.components.network import Network
from tpu_infra.settings import machines

# Neither a new release's packages nor other prices recreate a VM.
_KEPT = (Metadata.TENSORFLOW_LOCK, Metadata.COST_NOTE)
# Nor does a new release's agent, unless the VM has just been given one to do more than train.
_TASKS = (Metadata.LIMITS, Metadata.JOBS)


class Vm(pulumi.ComponentResource):
    """A VM that runs as the stack's service account with the `cloud-platform` scope.

    It does not wait for the TPU, on purpose: the trainer looks up the endpoint by name and waits.
    """

    name: pulumi.Output[str]
    address: pulumi.Output[str]
    """The internal one."""

    def __init__(self, around: machine.Surroundings) -> None:
        super().__init__("tpu-stack:infra:Vm", "vm")
        self._around, stack = around, around.stack
        vm, metadata = stack.settings.vm, machine.vm_metadata(stack, around.bucket)
        instance = gcp.compute.Instance(
            "instance",
            name=stack.names.vm,
            project=stack.settings.project,
            zone=stack.settings.vm_zone,
            machine_type=vm.machine_type,
            boot_disk=self._boot_disk(),
            network_interfaces=_interfaces(vm, around.network),
            scheduling=scheduling(vm),
            shielded_instance_config=_shielded(vm),
            service_account=_account(around.identity),
            tags=around.tags,
            metadata=metadata,
            metadata_startup_script=machine.vm_script(stack),
            labels=stack.marked_labels,
            desired_status="RUNNING" if stack.settings.vm_comes_back else None,
            allow_stopping_for_update=True,
            opts=self._options(
                depends_on=around.startup,
                # The script runs only at boot, and a new release replaces no VM: it is kept as long
                # as its task stays the same.
                ignore_changes=["metadataStartupScript", *names.KEPT_LABEL],
                replacement_trigger=machine.vm_task(stack),
                replace_on_changes=machine.properties_of_job(metadata),
            ),
        )
        self.name = instance.name
        self.address = instance.network_interfaces.apply(lambda every: every[0].network_ip or "")
        self.register_outputs({"name": self.name})

    def _options(self, **more: Any) -> pulumi.ResourceOptions:
        # Names are fixed: the old VM must be gone before its replacement can be made.
        more["delete_before_replace"] = True
        return self._around.services.after(apis.COMPUTE_API, parent=self, **more)

    def _boot_disk(self) -> Any:
        """Return a boot disk that is deleted with the VM, or declare one that outlives it."""
        stack, vm = self._around.stack, self._around.stack.settings.vm
        if not vm.keep_boot_disk:
            params = {"image": vm.image, "size": vm.boot_disk_gib, "type": vm.boot_disk_type.value}
            return {"auto_delete": True, "initialize_params": params}
        disk = gcp.compute.Disk(
            "boot-disk",
            # A boot disk that is deleted with its VM has the VM's name.
            name=f"{stack.names.vm}-boot",
            project=stack.settings.project,
            zone=stack.settings.vm_zone,
            image=vm.image,
            size=vm.boot_disk_gib,
            type=vm.boot_disk_type.value,
            labels=stack.marked_labels,
            opts=self._options(ignore_changes=names.KEPT_LABEL),
        )
        return {"auto_delete": False, "source": disk.self_link}


class InstanceGroup(pulumi.ComponentResource):
    """A VM that comes back under the same name and resumes training from its checkpoint.

    Its group recreates it whenever it is not running (preempted, stopped, deleted, crashed) and,
    if it runs the trainer, when it fails its health check. A change of settings replaces what it
    touches instead of updating it: Google refuses to update a group that it has changed itself in
    the meantime, and another job needs a new VM anyway.
    """

    name: pulumi.Output[str]

    def __init__(
        self, around: machine.Surroundings, settings: machines.InstanceGroupSettings
    ) -> None:
        super().__init__("tpu-stack:infra:InstanceGroup", "vm")
        self._around, stack = around, around.stack
        project, zone, name = stack.settings.project, stack.settings.vm_zone, stack.names.vm
        template = self._template(machine.vm_metadata(stack, around.bucket))
        healing = None
        if machine.vm_script(stack):
            check = self._health_check(settings)
            delay = settings.initial_delay_seconds
            healing = gcp.compute.InstanceGroupManagerAutoHealingPoliciesArgs(
                health_check=check.id, initial_delay_sec=delay
            )
        manager = gcp.compute.InstanceGroupManager(
            "group",
            name=name,
            project=project,
            zone=zone,
            base_instance_name=name,
            versions=[{"instance_template": template.self_link}],
            auto_healing_policies=healing,
            opts=self._options(
                delete_before_replace=True, replace_on_changes=["*"], depends_on=around.startup
            ),
        )
        # VMs that a group makes have random names; one that is added by name keeps it. It counts
        # towards the group's size, which is therefore not set above.
        member = gcp.compute.PerInstanceConfig(
            "instance",
            name=stack.names.vm_of_group,
            project=project,
            zone=zone,
            instance_group_manager=manager.name,
            preserved_state={"metadata": {"group": name}},
            opts=self._options(delete_before_replace=True, deleted_with=manager),
        )
        self.name = member.name
        self.register_outputs({"name": self.name})

    def _options(self, **more: Any) -> pulumi.ResourceOptions:
        return self._around.services.after(apis.COMPUTE_API, parent=self, **more)

    def _template(self, metadata: dict[str, pulumi.Input[str]]) -> gcp.compute.InstanceTemplate:
        """Declare the template."""
        stack, network = self._around.stack, self._around.network
        vm, script = stack.settings.vm, machine.vm_script(stack)
        disk: Any = {
            "boot": True,
            "auto_delete": True,
            "source_image": vm.image,
            "disk_size_gb": vm.boot_disk_gib,
            "disk_type": vm.boot_disk_type.value,
        }
        if script:
            metadata = {**metadata, Metadata.HEALTH_PORT: str(Port.HEALTH)}
        kept = _KEPT if any(task in metadata for task in _TASKS) else (*_KEPT, Metadata.AGENT)
        named = {key: value for key, value in metadata.items() if key not in kept}
        tags, account = self._around.tags, _account(self._around.identity)
        content = [
            *(vm.machine_type, disk, _interfaces(vm, network), scheduling(vm)),
            *(_shielded(vm), account, tags, named, stack.labels),
        ]
        return gcp.compute.InstanceTemplate(
            # The engine keeps what is ignored also if it replaces a resource, and another version
            # needs its own lock: so it is another resource.
            f"template-{stack.trainer_tensorflow}",
            name=machine.name_by_content(stack.names.vm, content),
            project=stack.settings.project,
            machine_type=vm.machine_type,
            disks=[disk],
            network_interfaces=_interfaces(vm, network),
            scheduling=scheduling(vm),
            shielded_instance_config=_shielded(vm),
            service_account=account,
            tags=tags,
            metadata={**metadata, **({Metadata.STARTUP_SCRIPT: script} if script else {})},
            labels=stack.marked_labels,
            # Like a VM without a group it keeps the script that it was made with, and what that
            # installs.
            opts=self._options(
                ignore_changes=[
                    *names.KEPT_LABEL,
                    *(f'metadata["{key}"]' for key in (Metadata.STARTUP_SCRIPT, *kept)),
                ],
            ),
        )

    def _health_check(self, settings: machines.InstanceGroupSettings) -> gcp.compute.HealthCheck:
        """Declare the check, and open its port to Google's health checks alone."""
        around, stack, name = self._around, self._around.stack, self._around.stack.names.vm
        # Firewall rules belong to the network's project, which decides in a Shared VPC.
        if not stack.settings.network.project:
            ranges = stack.context.catalog.network.health_check_ranges
            gcp.compute.Firewall(
                "allow-health",
                name=f"{name}-health",
                project=stack.settings.project,
                network=around.network.network,
                direction="INGRESS",
                source_ranges=[str(block) for block in ranges],
                target_service_accounts=[around.identity.email],
                allows=[{"protocol": "tcp", "ports": [str(Port.HEALTH)]}],
                opts=self._options(delete_before_replace=True),
            )
        return gcp.compute.HealthCheck(
            "health",
            name=name,
            project=stack.settings.project,
            check_interval_sec=settings.check_interval_seconds,
            timeout_sec=min(5, settings.check_interval_seconds),
            unhealthy_threshold=settings.failed_checks,
            http_health_check={"port": Port.HEALTH},
            description=stack.marked_description,
            # The group refers to it by its name, which stays the same.
            opts=self._options(ignore_changes=names.KEPT_DESCRIPTION),
        )


def scheduling(vm: machines.VmSettings) -> Any:
    """Return when Google may stop, move or restart the VM.

    Google wants all of these to agree: a VM that it may take away neither moves nor restarts.
    """
    stays = vm.capacity is machines.VmCapacity.ON_DEMAND
    spot = vm.capacity is machines.VmCapacity.SPOT
    action = vm.termination_action or machines.TerminationAction.STOP
    return {
        "provisioning_model": "SPOT" if spot else "STANDARD",
        "preemptible": not stays,
        "automatic_restart": stays,
        "on_host_maintenance": "MIGRATE" if stays else "TERMINATE",
        **({"instance_termination_action": action.value.upper()} if spot else {}),
    }


def _interfaces(vm: machines.VmSettings, network: Network) -> Any:
    """Return the VM's one interface, in the stack's subnet."""
    # An empty access configuration asks for a public address of Google's choice.
    access: list[dict[str, str]] = [{}] if vm.public_ip else []
    return [
        {"network": network.network, "subnetwork": network.subnetwork, "access_configs": access}
    ]


def _shielded(vm: machines.VmSettings) -> Any:
    """Return the options of Shielded VM."""
    return {
        "enable_secure_boot": vm.shielded.secure_boot,
        "enable_vtpm": vm.shielded.vtpm,
        "enable_integrity_monitoring": vm.shielded.integrity_monitoring,
    }


def _account(identity: Identity) -> Any:
    """Return the service account; IAM, not its scopes, limits what it may do."""
    return {"email": identity.email, "scopes": [machines.FULL_SCOPE]}
