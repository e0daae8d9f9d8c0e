"""`tpustack bootstrap`: creates what the pipeline needs."""

from __future__ import annotations

import click

from tpustack import bootstrap
from tpustack.engine import toolchain


@click.command("bootstrap")
@click.option(
    "--stack",
    "-s",
    default="pipeline",
    show_default=True,
    help="Its settings are bootstrap/Pulumi.STACK.yaml.",
)
def command(stack: str) -> None:
    """Create the state bucket, the key, the identities of the pipeline and its budget.

    May be run again at any time; prints the values to enter in the pipeline's settings.
    """
    environment = toolchain.engine(toolchain.find())
    update = bootstrap.bootstrap(stack, environment, lambda line: click.echo(line, err=True))
    click.echo(f"{update.changed} changes" if update.changed else "nothing changed")
    for name, value in sorted(update.outputs.items()):
        click.echo(f"{name}: {value}")
