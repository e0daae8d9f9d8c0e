"""The whole program as one function, which tests call with settings of their own; its outputs."""

from collections.abc import Mapping
from dataclasses import replace

import pulumi

from infra.apis import apis_of
from infra.checks import ensure_valid
from infra.checks.context import Context
from infra.components import alerts, identity, tpu, vm
from infra.components.bucket import Bucket
from infra.components.machine import Surroundings
from infra.components.network import Network
from infra.components.services import ProjectServices
from infra.cost import table, until_destroyed
from infra.settings import StackSettings

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
"""The stack's outputs and what each is; people and the command line read them by these names."""


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
    # The engine makes at once what does not depend on each other, whatever the order here.
    services = ProjectServices(settings.project, apis_of(settings), enable=settings.enable_apis)
    if settings.budget is not None:
        alerts.Budget(stack, settings.budget, services)
    bucket = Bucket(stack, services)
    machines = identity.Identity(stack, services, bucket)
    if settings.jobs.vertex is not None:
        identity.VertexTraining(stack, settings.jobs.vertex, services, bucket)
    # The TPU acts as the jobs' account where jobs drive it, since what drives a TPU by gRPC can act
    # as its account. Where its worker 0 trains, the agent there needs the machines' own.
    of_tpu = machines
    if settings.jobs.apart:
        jobs = identity.Identity(stack, services, bucket, machines)
        of_tpu = jobs if not settings.trains_on_tpu else machines
    if settings.limits.any or settings.recovery.enabled:
        identity.Limits(stack, services, machines, of_tpu)
    if settings.messages.any:
        alerts.Messages(stack, services)
    around = Surroundings(stack, services, Network(stack, services), machines, bucket)
    made = _form_of_tpu(settings)(replace(around, identity=of_tpu))
    group = settings.vm.instance_group
    machine = vm.Vm(around) if group is None else vm.InstanceGroup(around, group)
    return _export(around, machine, made)


def _form_of_tpu(settings: StackSettings) -> type[tpu.Tpu]:
    if settings.is_node:
        return tpu.TpuNode
    return tpu.TpuVm if settings.tpu.queue is None else tpu.QueuedTpu


def _export(
    around: Surroundings, machine: vm.Vm | vm.InstanceGroup, made: tpu.Tpu
) -> dict[str, pulumi.Input[object]]:
    """Export every output and return them."""
    settings, bucket = around.stack.settings, around.bucket
    values: dict[str, pulumi.Input[object]] = {
        "architecture": settings.architecture.value,
        "bucket_name": bucket.name,
        "bucket_url": bucket.url,
        "job_url": pulumi.Output.concat(bucket.url, "/jobs/", around.stack.job),
        "project": settings.project,
        "region": settings.region,
        "service_account": around.identity.email,
        "tpu_accelerator_type": settings.tpu.accelerator_type,
        "tpu_endpoint": made.endpoints.apply(lambda endpoints: endpoints[0] if endpoints else ""),
        "tpu_endpoints": made.endpoints,
        "tpu_name": made.name,
        "tpu_names": made.names,
        "tpu_zone": made.zone,
        "tpu_zones": list(settings.tpu_zones),
        "vm_name": machine.name,
        "vm_zone": settings.vm_zone,
    }
    for name in OUTPUTS:
        pulumi.export(name, values[name])
    return values
