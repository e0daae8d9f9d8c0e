"""The whole program as one function, which tests call with settings of their own."""

from __future__ import annotations

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
from infra.outputs import export
from infra.settings import StackSettings
from infra.settings.machines import Architecture, RunOn


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
        from infra.components.vertex import VertexTraining

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
