"""`tpustack recover`: a stack whose engine was killed."""

from __future__ import annotations

import os

import click

from tpustack import options
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.project import root


@click.command("recover")
@options.stack("The stack whose update was killed.", required=True)
def command(stack: str) -> None:
    """Make a stack whose update was killed one that `pulumi up` and `destroy` can work with.

    Releases the lock, and takes into the state what was being created and is there by now. Run it
    only when no update of the stack is running any more.
    """
    tools = toolchain.find()
    environment = {"PATH": f"{tools.bin}{os.pathsep}{os.environ['PATH']}"}
    selected = Backend(environment, root()).select(stack)
    interrupted = selected.recovery(lambda line: click.echo(line, err=True)).force()
    for urn in interrupted:
        click.echo(urn)
    click.echo("Nothing was being created." if not interrupted else "Run `pulumi up` to go on.")
