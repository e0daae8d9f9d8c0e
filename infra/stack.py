"""The stack's components, wired so that each waits only for what it needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pulumi

from infra.apis import (
    COMPUTE_API,
    IAM_API,
    KMS_API,
    PROJECTS_API,
    STORAGE_API,
    TPU_API,
    apis_of,
)
from infra.catalog.packages import TPU_PACKAGE, VM_PACKAGE
from infra.checks import CheckedStack
from infra.checks.context import Context
from infra.checks.network import subnet_range
from infra.checks.training import data_files
from infra.components import machine as machines
from infra.components.bucket import Bucket, BucketArgs
from infra.components.budget import Budget, BudgetArgs
from infra.components.encryption import Encryption, EncryptionArgs
from infra.components.identity import JOBS_OBJECTS, Identity, IdentityArgs, grant_bucket_to
from infra.components.limits import Limits, LimitsArgs
from infra.components.managed_vm import ManagedVm, ManagedVmArgs
from infra.components.network import Network, NetworkArgs
from infra.components.services import ProjectServices, ProjectServicesArgs
from infra.components.tpu import Tpu, TpuArgs, TpuNode, TpuVm
from infra.components.vm import Vm, VmArgs
from infra.cost.running import without_price
from infra.settings import StackSettings
from infra.settings.tpu import Architecture
from infra.settings.training import RunOn
from tpu_agent.bundle import lock_of, startup_script
from tpu_core.paths import DECLARATION


@dataclass(frozen=True)
class Place:
    """The network of the machines; `egress` is ready once they can reach the internet."""

    network: pulumi.Input[str]
    subnetwork: pulumi.Input[str]
    egress: tuple[pulumi.Resource, ...]


class Builder:
    """Declares the parts of one stack from settings that have been checked."""

    def __init__(self, settings: StackSettings, context: Context, checked: CheckedStack) -> None:
        self.settings = settings
        self.context = context
        self.checked = checked
        self.names = context.names
        # By it the agent acts, whose own account must not change it.
        self.read_only = DECLARATION if settings.recovery.enabled else None
        self.labels = {**settings.labels, "managed-by": "pulumi", "tpu-stack": context.stack}

    def services(self) -> ProjectServices:
        """Declare the APIs."""
        settings = self.settings
        args = ProjectServicesArgs(settings.project, apis_of(settings), settings.enable_apis)
        return ProjectServices("services", args)

    def network(self, services: ProjectServices) -> Place:
        """Declare the stack's own network, or return the one that the settings name."""
        network, facts = self.settings.network, self.context.catalog.network
        if not network.create:
            name, subnetwork = network.given_name, network.given_subnetwork
            project, region = network.project or self.settings.project, self.settings.region
            return Place(
                f"projects/{project}/global/networks/{name}",
                f"projects/{project}/regions/{region}/subnetworks/{subnetwork}",
                (),
            )
        args = NetworkArgs(
            project=self.settings.project,
            region=self.settings.region,
            name=self.names.network,
            subnet_range=subnet_range(self.settings, self.context) or facts.own_subnet_range,
            iap_range=facts.iap_range,
            ssh_port=facts.ssh_port,
            tag=self.names.network,
            requires=(services.enabled[COMPUTE_API],),
        )
        own = Network("network", args)
        return Place(own.network, own.subnetwork, (own.egress,))

    def bucket(self, services: ProjectServices) -> Bucket:
        """Declare the bucket with the wheel and the data."""
        args = BucketArgs(
            project=self.settings.project,
            name=self.names.bucket,
            region=self.settings.region,
            create=self.settings.bucket.create,
            wheel=self.checked.wheel,
            data=data_files(self.settings, self.context.root),
            force_destroy=self.settings.bucket.force_destroy,
            protect=self.settings.bucket.protect,
            versioning=self.settings.bucket.versioning,
            soft_delete_days=self.settings.bucket.soft_delete_days,
            lifecycle=self.settings.bucket.lifecycle,
            encryption=self._encryption(services),
            labels=self.labels,
            requires=(services.enabled[STORAGE_API],),
        )
        return Bucket("bucket", args)

    def _encryption(self, services: ProjectServices) -> Encryption | None:
        """Declare the bucket's key, unless Google manages it."""
        bucket = self.settings.bucket
        if bucket.encryption is None:
            return None
        args = EncryptionArgs(
            project=self.settings.project,
            region=self.settings.region,
            prefix=self.names.prefix,
            key=bucket.encryption.key,
            rotation_days=bucket.encryption.rotation_days,
            kept=not bucket.force_destroy,
            protect=bucket.protect,
            labels=self.labels,
            requires=(services.enabled[KMS_API], services.enabled[STORAGE_API]),
        )
        return Encryption("encryption", args)

    def budget(self, services: ProjectServices) -> None:
        """Declare the budget, if the stack has one."""
        budget, amount = self.settings.budget, self.checked.budget_amount
        if budget is None or amount is None:
            return
        args = BudgetArgs(
            project=self.settings.project,
            name=self.names.prefix,
            amount=amount,
            settings=budget,
            label=("tpu-stack", self.context.stack),
            labels=self.labels,
            requires=services.enabled,
        )
        Budget("budget", args)

    def identity(self, services: ProjectServices, bucket: Bucket) -> Identity:
        """Declare the service account of the VM and the TPU VM."""
        args = IdentityArgs(
            project=self.settings.project,
            account_id=self.names.account,
            bucket=bucket.name,
            read_only=self.read_only,
            project_roles=("roles/monitoring.metricWriter",) if self.settings.vm.ops_agent else (),
            bucket_deleted_with=bucket.deleted_with,
            requires={
                "account": services.enabled[IAM_API],
                "project": services.enabled[PROJECTS_API],
            },
        )
        return Identity("identity", args)

    def limits(self, services: ProjectServices, identity: Identity, of_tpu: Identity) -> None:
        """Declare what the machines may do when a limit is reached, or a TPU is lost."""
        if not self.settings.limits.any and not self.settings.recovery.enabled:
            return
        args = LimitsArgs(
            project=self.settings.project,
            role_id=self.names.limits_role,
            given=self.settings.limits.role,
            creates=self.settings.recovery.enabled,
            as_itself=self.settings.architecture is Architecture.VM,
            account=identity.email,
            tpu_account_name=of_tpu.name,
            requires=(services.enabled[IAM_API], services.enabled[PROJECTS_API]),
        )
        Limits("limits", args)

    def job(self, bucket: Bucket) -> machines.Job:
        """Return the job of the machine that runs the trainer."""
        training = self.settings.training
        return machines.Job(
            name=self.checked.job,
            args=training.args,
            tensorflow=self.checked.trainer_tensorflow,
            wheels=self.checked.wheels,
            bucket_url=bucket.url,
            wheel_url=bucket.wheel_url,
            wheel_sha256=bucket.wheel_sha256,
        )

    def tpu(
        self, services: ProjectServices, place: Place, identity: Identity, bucket: Bucket
    ) -> Tpu:
        """Declare the TPU in the form that the settings ask for."""
        tpu, catalog = self.settings.tpu, self.context.catalog
        accelerator = catalog.accelerator(tpu.accelerator_type)
        metadata = self._tpu_metadata(bucket)
        args = TpuArgs(
            **self._machine(services, place, identity),
            name=self.names.tpu,
            names=self.names.tpus(tpu.slices),
            settings=tpu,
            software=self.checked.tpu_software,
            metadata=metadata,
            taken=self.context.taken(),
            declared_in=bucket.name if self.settings.recovery.enabled else None,
            grpc_port=catalog.network.grpc_port,
            disk_type=accelerator.disk_types[0] if accelerator else "",
            requires=(
                services.enabled[TPU_API],
                *(_needs_of_startup(place, bucket) if machines.LOCK in metadata else ()),
            ),
        )
        if self.settings.architecture is Architecture.NODE:
            node = TpuNode("tpu", args)
            only = JOBS_OBJECTS if self.settings.jobs.apart else ()
            grant_bucket_to("tpu", bucket, node.account, node, self.read_only, only)
            return node
        if tpu.queue is None:
            return TpuVm("tpu", args)
        # Google's clients take a while to load, for which only those who queue should wait.
        from infra.components.queued import QueuedTpu

        return QueuedTpu("tpu", args)

    def vm(
        self, services: ProjectServices, place: Place, identity: Identity, bucket: Bucket
    ) -> Vm | ManagedVm:
        """Declare the VM, alone or in a group; it runs the trainer unless the TPU VM does."""
        settings = self.settings
        runs_trainer = settings.training.run_on is RunOn.VM
        args = VmArgs(
            **self._machine(services, place, identity) | {"zone": settings.vm_zone},
            name=self.names.vm,
            settings=settings.vm,
            startup_script=startup_script("vm.sh") if runs_trainer else None,
            metadata=self._job_metadata(bucket, VM_PACKAGE) | self._of_trainer(RunOn.VM),
            comes_back=settings.vm_comes_back,
            requires=(services.enabled[COMPUTE_API], *_needs_of_startup(place, bucket)),
        )
        managed = settings.vm.managed
        if managed is None:
            return Vm("vm", args)
        # Firewall rules belong to the network's project, which decides in a Shared VPC.
        facts = self.context.catalog.network
        ranges = () if settings.network.project else facts.health_check_ranges
        return ManagedVm("vm", ManagedVmArgs(args, managed, ranges))

    def _machine(
        self, services: ProjectServices, place: Place, identity: Identity
    ) -> dict[str, Any]:
        """Return the arguments that the TPU and the VM have in common."""
        return {
            "project": self.settings.project,
            "zone": self.settings.zone,
            "network": place.network,
            "subnetwork": place.subnetwork,
            "account": identity.email,
            "tag": self.names.network,
            "labels": self.labels,
            "parts_require": (services.enabled[COMPUTE_API],),
        }

    def _job_metadata(self, bucket: Bucket, package: str) -> dict[str, pulumi.Input[str]]:
        """Return the metadata of a machine that installs TensorFlow as `package`."""
        settings = self.settings
        names = self.names.tpus(settings.tpu.slices)
        return {
            **machines.job_metadata(self.job(bucket), names, settings.zone, settings.project),
            **machines.agent_metadata(settings, self.context),
            machines.LOCK: lock_of(package, self.checked.trainer_tensorflow) or "none",
        }

    def _of_trainer(self, machine: RunOn) -> dict[str, pulumi.Input[str]]:
        """Return what only the machine that runs the trainer is told."""
        note = f"{without_price(self.settings, self.context.stack)}."
        return machines.trainer_metadata(note) if self.settings.training.run_on is machine else {}

    def _tpu_metadata(self, bucket: Bucket) -> dict[str, pulumi.Input[str]]:
        """Return a TPU VM's metadata; less if its runtime serves gRPC and the VM trains."""
        runtime = self.context.catalog.runtime(self.settings.tpu.runtime_version or "")
        runs_trainer = self.settings.training.run_on is RunOn.TPU
        if runtime is None:
            return {}
        job = self._job_metadata(bucket, TPU_PACKAGE) | self._of_trainer(RunOn.TPU)
        small = runtime.serves_grpc and not runs_trainer
        return {
            **({key: job[key] for key in ("tpu-name", "bucket-url")} if small else job),
            "tpu-serves-grpc": "true" if runtime.serves_grpc else "false",
            "tpu-pluggable": "true" if runtime.pluggable else "false",
            "tpu-runs-training": "true" if runs_trainer else "false",
            "startup-script": startup_script("tpu_vm.sh"),
        }


def _needs_of_startup(place: Place, bucket: Bucket) -> tuple[pulumi.Resource, ...]:
    """Return what a start-up script uses: the bucket's objects, and the way to packages."""
    return (*place.egress, *bucket.objects)
