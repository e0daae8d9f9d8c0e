"""The whole program as one function, which tests call with settings of their own."""

from __future__ import annotations

import pulumi

from infra.checks import ensure_valid
from infra.checks.context import Context
from infra.components.messages import declare_messages
from infra.cost.parts import of_stack
from infra.cost.running import goes_on
from infra.cost.table import table
from infra.managed import declare_training
from infra.outputs import export
from infra.settings import StackSettings
from infra.settings.training import RunOn
from infra.stack import Builder


def declare(settings: StackSettings, context: Context) -> dict[str, pulumi.Input[object]]:
    """Check the settings, then declare the stack.

    Returns:
        The outputs by name.

    Raises:
        SettingsError: before anything is declared.
    """
    checked = ensure_valid(settings, context)
    for warning in checked.warnings:
        pulumi.log.warn(warning)
    if pulumi.runtime.is_dry_run():
        costs = table(of_stack(settings, context.stack, context.catalog))
        pulumi.log.info(f"{costs}\n\n{goes_on(settings, context.stack, context.catalog)}.")
    stack = Builder(settings, context, checked)
    services = stack.services()
    stack.budget(services)
    bucket = stack.bucket(services)
    identity = stack.identity(services, bucket)
    declare_training(settings, context.names, services, bucket)
    of_tpu = identity
    if settings.jobs.apart:
        jobs = identity.of_jobs(context.names.jobs_account)
        # Anyone who drives a TPU by gRPC acts as its account.
        of_tpu = jobs if settings.training.run_on is RunOn.VM else identity
    stack.limits(services, identity, of_tpu)
    declare_messages(settings, context.names, stack.labels, identity, services)
    network = stack.network(services)
    tpu = stack.tpu(services, network, of_tpu, bucket)
    vm = stack.vm(services, network, identity, bucket)
    return export(settings, checked.job, bucket, identity, vm, tpu)
