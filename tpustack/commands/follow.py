"""`tpustack follow`: shows the training on a VM, live."""

from __future__ import annotations

import click
from rich.console import Console

from tpustack import options
from tpustack.errors import UsageError


@click.command("follow")
@options.stack("The stack whose VM to follow.", required=True)
def command(stack: str) -> None:
    """Follow the training on a stack's VM, live, from its serial port, until it ends.

    At the end it says what goes on costing, and which command ends that.
    """
    from tpustack.engine.deployed import outputs_of
    from tpustack.logs.follow import follow

    advice = f"`tpustack doctor --stack {stack}` looks for the cause in the stack's logs and states"
    outputs = outputs_of(stack)
    try:
        follow(Console(), outputs, advice=advice)
    finally:
        click.echo(_goes_on(stack))


def _goes_on(stack: str) -> str:
    from infra.catalog import Catalog
    from infra.cost.running import goes_on
    from tpustack.stacks.files import load

    try:
        return f"{goes_on(load(stack), stack, Catalog())}."
    except UsageError:
        # The file may be in the middle of a change.
        return f"TPU and VM go on costing until `pulumi destroy --stack {stack}`."
