"""`tpustack recover`: repairs a stack whose update was killed."""

from __future__ import annotations

import click

from tpustack import options
from tpustack.engine.backend import users_own


@click.command("recover")
@options.stack("The stack whose update was killed.", required=True)
def command(stack: str) -> None:
    """Repair a stack whose update was killed, so that `pulumi up` and `destroy` work again.

    Releases the lock, and adds to the state the resources that were being created and exist by now.
    Run it only when no update of the stack is running any more.
    """
    recovery = users_own().select(stack).recovery(lambda line: click.echo(line, err=True))
    interrupted = recovery.force()
    for urn in interrupted:
        click.echo(urn)
    click.echo("Nothing was being created." if not interrupted else "Run `pulumi up` to go on.")
