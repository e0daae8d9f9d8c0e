"""What the stack consists of: components, wired so that nothing waits for what it doesn't need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
from infra.checks.context import Context
from infra.checks.network import subnet_range
from infra.checks.training import data_files, find_wheel
from infra.checks.versions import tpu_tensorflow
from infra.components.bucket import Bucket, BucketArgs
from infra.components.budget import Budget, BudgetArgs
from infra.components.encryption import Encryption, EncryptionArgs
from infra.components.identity import Identity, IdentityArgs, grant_bucket_to
from infra.components.limits import Limits, LimitsArgs
from infra.components.machine import Job, job_metadata, limits_metadata, startup_script
from infra.components.managed_vm import ManagedVm, ManagedVmArgs
from infra.components.network import Network, NetworkArgs
from infra.components.services import ProjectServices, ProjectServicesArgs
from infra.components.tpu import Tpu, TpuArgs, TpuNode, TpuVm
from infra.components.vm import Vm, VmArgs
from infra.settings import StackSettings
from infra.settings.tpu import Architecture
from infra.settings.training import RunOn


@dataclass(frozen=True)
class Place:
    """The network that the machines are in; `egress` is what its way out waits for."""

    network: pulumi.Input[str]
    subnetwork: pulumi.Input[str]
    egress: tuple[pulumi.Resource, ...]


class Builder:
    """Declares the parts of one stack from settings that have been checked."""

    def __init__(self, settings: StackSettings, context: Context) -> None:
        self.settings = settings
        self.context = context
        self.names = context.names
        self.labels = {"managed-by": "pulumi", "tpu-stack": context.stack, **settings.labels}

    def services(self) -> ProjectServices:
        """The APIs."""
        settings = self.settings
        args = ProjectServicesArgs(settings.project, apis_of(settings), settings.enable_apis)
        return ProjectServices("services", args)

    def network(self, services: ProjectServices) -> Place:
        """The stack's own network, or the one that the settings name."""
        network, facts = self.settings.network, self.context.catalog.network
        if not network.create:
            name = network.name or "default"
            project, region = self.settings.project, self.settings.region
            subnetwork = network.subnetwork or name
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
            grpc_ports=(facts.grpc_port, facts.mesh_port),
            requires=(services.enabled[COMPUTE_API],),
        )
        own = Network("network", args)
        return Place(own.network, own.subnetwork, (own.egress,))

    def bucket(self, services: ProjectServices) -> Bucket:
        """The bucket with the wheel and the data."""
        wheel = find_wheel(self.settings, self.context.root)
        if wheel is None:
            raise AssertionError("the checks require a wheel")
        args = BucketArgs(
            project=self.settings.project,
            name=self.names.bucket,
            region=self.settings.region,
            create=self.settings.bucket.create,
            wheel=wheel,
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
        """The bucket's key, where it has one that is not Google's."""
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
        """The budget, where the stack has one."""
        if self.settings.budget is None:
            return
        args = BudgetArgs(
            project=self.settings.project,
            name=self.names.prefix,
            settings=self.settings.budget,
            label=("tpu-stack", self.context.stack),
            labels=self.labels,
            requires=services.enabled,
        )
        Budget("budget", args)

    def identity(self, services: ProjectServices, bucket: Bucket) -> Identity:
        """The account of VM and TPU VM."""
        requires: Mapping[str, pulumi.Resource] = {
            "account": services.enabled[IAM_API],
            "project": services.enabled[PROJECTS_API],
        }
        args = IdentityArgs(
            project=self.settings.project,
            account_id=self.names.account,
            bucket=bucket.name,
            project_roles=("roles/monitoring.metricWriter",) if self.settings.vm.ops_agent else (),
            bucket_deleted_with=bucket.deleted_with,
            requires=requires,
        )
        return Identity("identity", args)

    def limits(self, services: ProjectServices, identity: Identity) -> None:
        """What the machines may do when a limit is reached."""
        if not self.settings.limits.any:
            return
        apis = (services.enabled[IAM_API], services.enabled[PROJECTS_API])
        args = LimitsArgs(
            project=self.settings.project,
            role_id=self.names.limits_role,
            queued=self.settings.tpu.queued is not None,
            account=identity.email,
            requires=apis,
        )
        Limits("limits", args)

    def job(self, bucket: Bucket) -> Job:
        """What the machine that runs the trainer is told."""
        training = self.settings.training
        tensorflow = training.tensorflow_version or tpu_tensorflow(self.settings, self.context)
        if tensorflow is None:
            raise AssertionError("the checks require a TensorFlow version")
        return Job(
            name=training.job,
            args=training.args,
            tensorflow=tensorflow,
            bucket_url=bucket.url,
            wheel_url=bucket.wheel_url,
            wheel_sha256=bucket.wheel_sha256,
        )

    def tpu(
        self, services: ProjectServices, place: Place, identity: Identity, bucket: Bucket
    ) -> Tpu:
        """The TPU, in the form that the settings ask for."""
        settings = self.settings
        metadata = self._tpu_metadata(bucket)
        needs = self._needs_of_startup(place, bucket) if metadata else ()
        args = TpuArgs(
            project=settings.project,
            zone=settings.zone,
            name=self.names.tpu,
            names=self.names.tpus(settings.tpu.slices),
            settings=settings.tpu,
            network=place.network,
            subnetwork=place.subnetwork,
            account=identity.email,
            metadata=metadata,
            labels=self.labels,
            grpc_port=self.context.catalog.network.grpc_port,
            disk_type=self.context.catalog.accelerators[settings.tpu.accelerator_type].disk_types[
                0
            ],
            requires=(services.enabled[TPU_API], *needs),
            disks_require=(services.enabled[COMPUTE_API],),
        )
        if settings.architecture is Architecture.NODE:
            node = TpuNode("tpu", args)
            grant_bucket_to("tpu", bucket.name, node.account, node, bucket.deleted_with)
            return node
        if settings.tpu.queued is None:
            return TpuVm("tpu", args)
        # Google's clients take a while to load, which only those who queue should wait for.
        from infra.components.queued import QueuedTpu

        return QueuedTpu("tpu", args)

    def vm(
        self, services: ProjectServices, place: Place, identity: Identity, bucket: Bucket
    ) -> Vm | ManagedVm:
        """The VM, by itself or in a group; it runs the trainer unless the TPU VM does."""
        settings = self.settings
        runs_trainer = settings.training.run_on is RunOn.VM
        args = VmArgs(
            project=settings.project,
            zone=settings.zone,
            name=self.names.vm,
            settings=settings.vm,
            network=place.network,
            subnetwork=place.subnetwork,
            account=identity.email,
            startup_script=startup_script("vm.sh") if runs_trainer else None,
            metadata=self._job_metadata(bucket),
            labels=self.labels,
            comes_back=runs_trainer and settings.limits.time_to_live_hours is not None,
            requires=(services.enabled[COMPUTE_API], *self._needs_of_startup(place, bucket)),
            parts_require=(services.enabled[COMPUTE_API],),
        )
        managed = settings.vm.managed
        if managed is None:
            return Vm("vm", args)
        ranges = self.context.catalog.network.health_check_ranges
        return ManagedVm("vm", ManagedVmArgs(args, managed, ranges))

    def _needs_of_startup(self, place: Place, bucket: Bucket) -> tuple[pulumi.Resource, ...]:
        """A start-up script reads the bucket and installs packages."""
        return (*place.egress, *bucket.objects)

    def _job_metadata(self, bucket: Bucket) -> dict[str, pulumi.Input[str]]:
        settings = self.settings
        names = self.names.tpus(settings.tpu.slices)
        # A group would turn on again what turns itself off.
        turn_off = settings.training.run_on is RunOn.VM and settings.vm.managed is None
        return {
            **job_metadata(self.job(bucket), names, settings.zone, settings.project),
            **limits_metadata(settings.limits, names, turn_off=turn_off),
        }

    def _tpu_metadata(self, bucket: Bucket) -> dict[str, pulumi.Input[str]]:
        """None is needed where the runtime serves gRPC by itself and the VM runs the trainer."""
        runtime = self.context.catalog.runtimes.get(self.settings.tpu.runtime_version or "")
        runs_trainer = self.settings.training.run_on is RunOn.TPU
        if runtime is None or (runtime.serves_grpc and not runs_trainer):
            return {}
        return {
            **self._job_metadata(bucket),
            "tpu-serves-grpc": "true" if runtime.serves_grpc else "false",
            "tpu-runs-training": "true" if runs_trainer else "false",
            "startup-script": startup_script("tpu_vm.sh"),
        }
