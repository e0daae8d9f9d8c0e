"""`tpustack follow`: the training on a VM, live."""

from __future__ import annotations

import os

import click
from rich.console import Console

from tpustack import completion, toolchain
from tpustack.engine import Engine


@click.command("follow")
@click.option(
    "--stack",
    "-s",
    shell_complete=completion.stacks,
    required=True,
    help="The stack whose VM to follow.",
)
def command(stack: str) -> None:
    """Follow the training on a stack's VM, live, from its serial port, until it ends."""
    from tpustack.follow import follow

    tools = toolchain.find()
    environment = {"PATH": f"{tools.bin}{os.pathsep}{os.environ['PATH']}"}
    outputs = Engine(stack, environment).outputs()
    follow(
        Console(),
        project=outputs["project"],
        zone=outputs["vm_zone"],
        vm=outputs["vm_name"],
    )
