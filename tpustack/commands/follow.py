"""`tpustack follow`: shows the training on a VM, live."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.console import Console

from tpustack import options
from tpustack.errors import UsageError

if TYPE_CHECKING:
    from infra.settings import StackSettings


@click.command("follow")
@options.stack("The stack whose training to follow.", required=True)
def command(stack: str) -> None:
    """Follow the training of a stack, live, until it ends.

    The VM's output comes from its serial port. Google shows none of a TPU VM: a trainer there is
    followed by what it writes to the bucket. At the end it says what goes on costing, and which
    command ends that.
    """
    from infra.settings.machines import RunOn
    from tpustack.engine.deployed import outputs_of
    from tpustack.logs.follow import follow

    advice = f"`tpustack doctor --stack {stack}` looks for the cause in the stack's logs and states"
    outputs, settings = outputs_of(stack), _settings(stack)
    on_tpu = settings is not None and settings.training.run_on is RunOn.TPU
    try:
        follow(Console(), outputs, advice=advice, on_tpu=on_tpu)
    finally:
        click.echo(_goes_on(stack, settings))


def _settings(stack: str) -> StackSettings | None:
    """Return the stack's settings; None while its file is in the middle of a change."""
    from tpustack.stacks.files import load

    try:
        return load(stack)
    except UsageError:
        return None


def _goes_on(stack: str, settings: StackSettings | None) -> str:
    from infra.catalog import Catalog
    from infra.cost import of_stack, until_destroyed

    if settings is None:
        return f"TPU and VM go on costing until `pulumi destroy --stack {stack}`."
    return f"{until_destroyed(of_stack(settings, stack, Catalog()), settings, stack)}."
