"""`tpustack recover`: a stack whose engine was killed."""

from __future__ import annotations

import os

import click

from tpustack import completion, toolchain
from tpustack.engine import Engine


@click.command("recover")
@click.option(
    "--stack",
    "-s",
    shell_complete=completion.stacks,
    required=True,
    help="The stack whose update was killed.",
)
def command(stack: str) -> None:
    """Make a stack whose update was killed one that `pulumi up` and `destroy` can work with.

    Releases the lock, and takes into the state what was being created and is there by now. Run it
    only when no update of the stack is running any more.
    """
    tools = toolchain.find()
    environment = {"PATH": f"{tools.bin}{os.pathsep}{os.environ['PATH']}"}
    interrupted = Engine(stack, environment).recover(lambda line: click.echo(line, err=True))
    for urn in interrupted:
        click.echo(urn)
    click.echo("Nothing was being created." if not interrupted else "Run `pulumi up` to go on.")
