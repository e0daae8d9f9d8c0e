"""The stack's outputs: the name, meaning and value of each."""

from __future__ import annotations

from collections.abc import Mapping

import pulumi

from infra.apis import apis_of
from infra.checks import ensure_valid
from infra.checks.context import Context
from infra.components.alerts import Budget, Messages
from infra.components.bucket import Bucket
from infra.components.identity import Identity, Limits
from infra.components.network import Network
from infra.components.services import ProjectServices
from infra.components.tpu import QueuedTpu, Tpu, TpuNode, TpuVm
from infra.components.vm import InstanceGroup, Vm
from infra.cost import table, until_destroyed
from infra.settings import StackSettings
from infra.settings.machines import Architecture, RunOn

OUTPUTS: Mapping[str, str] = {
    "architecture": "vm or node",
    "bucket_name": "Name of the bucket",
    "bucket_url": "gs://BUCKET",
    "job_url": "gs://BUCKET/jobs/JOB: checkpoints, TensorBoard events and metrics of this run",
    "project": "Google Cloud project",
    "region": "Region of everything",
    "service_account": "E-mail address of the account of VM and TPU VM",
    "tpu_accelerator_type": "Type and size of the TPU",
    "tpu_endpoint": "grpc://IP:PORT of worker 0 (of the first slice)",
    "tpu_endpoints": "grpc://IP:PORT of every worker, in worker order, slice by slice",
    "tpu_name": "Name of the TPU (the first slice), by which the training looks its endpoint up",
    "tpu_names": "Names of all slices",
    "tpu_zone": "Zone of the TPU, at the last update",
    "tpu_zones": "Zones that the TPU may be in, in the order in which they are tried",
    "vm_name": "Name of the VM",
    "vm_zone": "Zone of the VM",
}


def export(
    settings: StackSettings,
    job: str,
    bucket: Bucket,
    identity: Identity,
    vm: Vm | InstanceGroup,
    tpu: Tpu,
) -> dict[str, pulumi.Input[object]]:
    """Export every output and return them."""
    values: dict[str, pulumi.Input[object]] = {
        "architecture": settings.architecture.value,
        "bucket_name": bucket.name,
        "bucket_url": bucket.url,
        "job_url": pulumi.Output.concat(bucket.url, "/jobs/", job),
        "project": settings.project,
        "region": settings.region,
        "service_account": identity.email,
        "tpu_accelerator_type": settings.tpu.accelerator_type,
        "tpu_endpoint": tpu.endpoints.apply(lambda endpoints: endpoints[0] if endpoints else ""),
        "tpu_endpoints": tpu.endpoints,
        "tpu_name": tpu.name,
        "tpu_names": tpu.names,
        "tpu_zone": tpu.zone,
        "tpu_zones": list(settings.tpu_zones),
        "vm_name": vm.name,
        "vm_zone": settings.vm_zone,
    }
    for name in OUTPUTS:
        pulumi.export(name, values[name])
    return values


# --- The whole program as one function, which tests call with settings of their own.


def declare(settings: StackSettings, context: Context) -> dict[str, pulumi.Input[object]]:
    """Check the settings, then declare the stack.

    Returns:
        The outputs by name.

    Raises:
        SettingsError: before anything is declared.
    """
    stack = ensure_valid(settings, context)
    for warning in stack.warnings:
        pulumi.log.warn(warning)
    if pulumi.runtime.is_dry_run():
        end = until_destroyed(stack.cost, settings, context.stack)
        pulumi.log.info(f"{table(stack.cost)}\n\n{end}.")
    services = ProjectServices(settings.project, apis_of(settings), enable=settings.enable_apis)
    if settings.budget is not None:
        Budget(stack, settings.budget, services)
    bucket = Bucket(stack, services)
    machines = Identity(stack, services, bucket)
    if settings.jobs.vertex is not None:
        # Imports requests, which takes a while.
        from infra.components.identity import VertexTraining

        VertexTraining(stack, settings.jobs.vertex, services, bucket)
    of_tpu = machines
    if settings.jobs.apart:
        jobs = Identity(stack, services, bucket, machines)
        # Anyone who drives a TPU by gRPC acts as its account.
        of_tpu = jobs if settings.training.run_on is RunOn.VM else machines
    if settings.limits.any or settings.recovery.enabled:
        Limits(stack, services, machines, of_tpu)
    if settings.messages.any:
        Messages(stack, services)
    network = Network(stack, services)
    tpu = _form_of_tpu(settings)(stack, services, network, of_tpu, bucket)
    group = settings.vm.instance_group
    vm = (
        Vm(stack, services, network, machines, bucket)
        if group is None
        else InstanceGroup(stack, group, services, network, machines, bucket)
    )
    return export(settings, stack.job, bucket, machines, vm, tpu)


def _form_of_tpu(settings: StackSettings) -> type[Tpu]:
    if settings.architecture is Architecture.NODE:
        return TpuNode
    return TpuVm if settings.tpu.queue is None else QueuedTpu
