"""`tpustack local`: the local Google Cloud, with Pulumi set up for it."""

from __future__ import annotations

import sys

import click

from tpustack import project
from tpustack.cloud import local
from tpustack.engine import toolchain


@click.command(
    "local",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Start, stop and look into the local Google Cloud.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Run a command of the local cloud; `env --backend` adds Pulumi with the demo's stacks."""
    backend = arguments == ("env", "--backend")
    code = local.pass_on(arguments[:1] if backend else arguments or ("--help",))
    if code == 0 and backend:
        variables = toolchain.environment(toolchain.find(), project.state())
        click.echo(toolchain.exports(variables))
        click.echo(f"and Pulumi's, for the stacks of `make demo`: {', '.join(variables)}", err=True)
    sys.exit(code)
