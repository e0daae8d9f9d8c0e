"""`tpustack follow`: the training on a VM, live."""

from __future__ import annotations

import os

import click
from rich.console import Console

from tpustack import options
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.project import root


@click.command("follow")
@options.stack("The stack whose VM to follow.", required=True)
def command(stack: str) -> None:
    """Follow the training on a stack's VM, live, from its serial port, until it ends."""
    from tpustack.logs.follow import follow

    tools = toolchain.find()
    environment = {"PATH": f"{tools.bin}{os.pathsep}{os.environ['PATH']}"}
    outputs = Backend(environment, root()).select(stack).outputs()
    follow(
        Console(),
        project=outputs["project"],
        zone=outputs["vm_zone"],
        vm=outputs["vm_name"],
    )
