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
    """Run a command of the local cloud; `env` adds what Pulumi needs."""
    chosen = arguments or ("--help",)
    code = local.pass_on(chosen)
    others = {"--json", "--unset", "--help", "-h"}
    if code == 0 and chosen[0] == "env" and not others & set(chosen):
        variables = toolchain.environment(toolchain.find(), project.state())
        click.echo(toolchain.exports(variables))
    sys.exit(code)
