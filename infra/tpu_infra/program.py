"""The whole program: a project's `__main__.py` calls `run`, a component `advised`; its outputs."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pulumi

from tpu_infra import advice, apis, catalog, checks, cost, names
from tpu_infra.checks.context import UNVERIFIED
from tpu_infra.components import alerts, bucket, identity, machine, network, services, tpu, vm
from tpu_infra.settings import StackSettings, base, parse

OUTPUTS: Mapping[str, str] = {
    "architecture": "vm, compute or node",
    "bucket_name": "Name of the bucket",
    "bucket_url": "gs://BUCKET",
    "bucket_key": "Full name of the key that encrypts the bucket; empty without bucket.encryption",
    "job_url": "gs://BUCKET/jobs/JOB: checkpoints, TensorBoard events and metrics of this run",
    "jobs_service_account": "E-mail address of the account of the queue's jobs; empty if they have "
    "none of their own",
    "network": "Full name of the network",
    "project": "Google Cloud project",
    "region": "Region of everything",
    "service_account": "E-mail address of the account of VM and TPU VM",
    "subnetwork": "Full name of the subnetwork",
    "tpu_accelerator_type": "Type and size of the TPU",
    "tpu_endpoint": "grpc://IP:PORT of worker 0 (of the first slice)",
    "tpu_endpoints": "grpc://IP:PORT of every worker, in worker order, slice by slice; none with "
    "architecture compute",
    "tpu_name": "Name of the TPU (the first slice), by which the training looks its endpoint up",
    "tpu_names": "Names of all slices",
    "tpu_zone": "Zone of the TPU, at the last update",
    "tpu_zones": "Zones that the TPU may be in, in the order in which they are tried",
    "vm_address": "Internal address of the VM; empty without one, or if a group makes it",
    "vm_name": "Name of the VM; with architecture compute, of the TPU's own machine; empty without "
    "one",
    "vm_zone": "Zone of the VM",
}
"""The stack's outputs and what each is; people and the command line read them by these names."""

OF_BUCKET = ("bucket_name", "bucket_url", "bucket_key", "project", "region")
"""Those of a bucket that components share."""

Outputs = dict[str, pulumi.Input[object]]


def run(root: Path) -> Outputs:
    """Read the settings of the engine's stack, check them, declare the stack, report what is off.

    What Google alone knows is looked up next to the declarations: a preview must not wait for it.

    Args:
        root: the project's folder, to which the settings' paths are relative.

    Returns:
        The outputs by name.

    Raises:
        RunError: with every problem of the settings, before anything is declared.
    """
    stack = pulumi.get_stack()

    def context(settings: StackSettings) -> checks.Context:
        return checks.Context(stack, root, catalog.Catalog(), names.names_of(settings, stack))

    try:
        settings = parse.settings_from_engine()
        outputs = advised(checks.ensure_valid(settings, context(settings)), stack)
    except base.SettingsError as error:
        raise pulumi.RunError(str(checks.with_checks(error, context))) from None
    for name, value in outputs.items():
        pulumi.export(name, value)
    return outputs


def advised(stack: checks.CheckedStack, file: str | None = None) -> Outputs:
    """Declare a stack, and say what Google alone knows of it and how to cure errors of Google's.

    `file` is the name of its stack file, which a component has none of.
    """
    settings, tpus = stack.settings, stack.names.tpus(stack.settings.tpu.slices)
    preempted = advice.look_for_preempted(settings, tpus)
    stack = replace(stack, context=replace(stack.context, preempted=preempted))
    if not pulumi.runtime.is_dry_run():
        advice.watch_errors(file)
    outputs = declare(stack)
    if pulumi.runtime.is_dry_run():
        advice.report(settings, stack.context)
    return outputs


def component(stack: checks.Checked) -> Outputs:
    """Declare what a component stands for, which has no stack file, and return its outputs."""
    if isinstance(stack, checks.CheckedStack):
        return advised(stack)
    if not pulumi.runtime.is_dry_run():
        advice.watch_errors(None)
    return _share(stack)


def declare(stack: checks.CheckedStack) -> Outputs:
    """Declare a stack that has passed the checks, and return its outputs by name."""
    settings, context = stack.settings, stack.context
    preview = pulumi.runtime.is_dry_run()
    for warning in stack.warnings:
        # The update after a preview changes nothing about what is unverified.
        if preview or not warning.startswith(UNVERIFIED):
            pulumi.log.warn(warning)
    if preview:
        end = cost.until_destroyed(stack.cost, settings, context.stack)
        pulumi.log.info(f"{cost.table(stack.cost)}\n\n{end}.")
    # The engine makes at once what does not depend on each other, whatever the order here.
    needed = apis.apis_of(settings)
    enabled = services.ProjectServices(settings.project, needed, enable=settings.enable_apis)
    if settings.budget is not None:
        alerts.Budget(stack, settings.budget, enabled)
    store = bucket.Bucket(stack, enabled)
    machines = identity.Identity(stack, enabled, store)
    if settings.jobs.vertex is not None:
        identity.VertexTraining(stack, settings.jobs.vertex, enabled, store)
    # The TPU acts as the jobs' account where jobs drive it, since what drives a TPU by gRPC can act
    # as its account. Where its worker 0 trains, the agent there needs the machines' own.
    of_tpu, jobs = machines, None
    if settings.jobs.apart:
        jobs = identity.Identity(stack, enabled, store, "jobs", machines)
        of_tpu = jobs if not settings.trains_on_tpu else machines
    # What runs on a TPU of Compute Engine must not be able to create machines.
    watches = settings.has_watcher
    agent = identity.Identity(stack, enabled, store, "watcher") if watches else machines
    if settings.keeps_limits:
        identity.Limits(stack, enabled, agent, of_tpu)
    if settings.messages.any:
        alerts.Messages(stack, enabled)
    around = machine.Surroundings(stack, enabled, network.Network(stack, enabled), machines, store)
    if settings.is_compute:
        compute = tpu.ComputeTpu(around)
        if watches:
            watcher, group = replace(around, identity=agent), settings.vm.instance_group
            vm.Vm(watcher) if group is None else vm.InstanceGroup(watcher, group)
        return _outputs(around, compute, compute.host, jobs=jobs)
    form = tpu.TpuVm if settings.tpu.queue is None else tpu.QueuedTpu
    made: tpu.Tpu = (tpu.TpuNode if settings.is_node else form)(replace(around, identity=of_tpu))
    if not settings.has_vm:
        return _outputs(around, made, jobs=jobs)
    if (group := settings.vm.instance_group) is not None:
        return _outputs(around, made, vm.InstanceGroup(around, group).name, jobs=jobs)
    driver = vm.Vm(around)
    return _outputs(around, made, driver.name, driver.address, jobs=jobs)


def _share(stack: checks.Checked) -> Outputs:
    """Declare a bucket without a TPU, which components share, and return its outputs."""
    settings = stack.settings
    needed = [apis.STORAGE_API, *([apis.KMS_API] if settings.bucket.encryption else [])]
    enabled = services.ProjectServices(settings.project, needed, enable=settings.enable_apis)
    made = bucket.SharedBucket(stack, enabled)
    values = (made.name, made.url, made.key, settings.project, settings.region)
    return dict(zip(OF_BUCKET, values, strict=True))


def _outputs(
    around: machine.Surroundings,
    made: tpu.Tpu,
    vm_name: pulumi.Input[str] = "",
    vm_address: pulumi.Input[str] = "",
    *,
    jobs: identity.Identity | None,
) -> Outputs:
    """Return the value of every output."""
    settings, store = around.stack.settings, around.bucket
    values: Outputs = {
        "architecture": settings.architecture.value,
        "bucket_name": store.name,
        "bucket_url": store.url,
        "bucket_key": store.key,
        "job_url": pulumi.Output.concat(store.url, "/jobs/", around.stack.job),
        "jobs_service_account": jobs.email if jobs else "",
        "network": around.network.network,
        "project": settings.project,
        "region": settings.region,
        "service_account": around.identity.email,
        "subnetwork": around.network.subnetwork,
        "tpu_accelerator_type": settings.tpu.accelerator_type,
        "tpu_endpoint": made.endpoints.apply(lambda endpoints: endpoints[0] if endpoints else ""),
        "tpu_endpoints": made.endpoints,
        "tpu_name": made.name,
        "tpu_names": made.names,
        "tpu_zone": made.zone,
        "tpu_zones": list(settings.tpu_zones),
        "vm_address": vm_address,
        "vm_name": vm_name,
        "vm_zone": settings.zone if settings.is_compute else settings.vm_zone,
    }
    # A KeyError here means that an output is described and not made.
    return {name: values[name] for name in OUTPUTS}
