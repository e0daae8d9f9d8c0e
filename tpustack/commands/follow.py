"""`tpustack follow`: shows the training on a VM, live."""

from __future__ import annotations

import click
from rich.console import Console

from tpustack import options


@click.command("follow")
@options.stack("The stack whose VM to follow.", required=True)
def command(stack: str) -> None:
    """Follow the training on a stack's VM, live, from its serial port, until it ends."""
    from tpustack.engine.deployed import outputs_of
    from tpustack.logs.follow import follow

    follow(Console(), outputs_of(stack))
