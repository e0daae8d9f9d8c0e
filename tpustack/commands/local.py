"""`tpustack local`: the local Google Cloud, with Pulumi set up for it."""

from __future__ import annotations

import sys

import click

from tpustack.cloud import local as localcloud
from tpustack.engine import toolchain
from tpustack.project import LOCAL_CLOUD_HOME

SUBCOMMANDS = ("start", "status", "stop", "reset", "env", "logs", "faults")


@click.command(
    "local",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Start, stop and look into the local Google Cloud.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def command(arguments: tuple[str, ...]) -> None:
    """Pass on to `python -m localcloud`; `env` adds what Pulumi needs."""
    chosen = list(arguments) or ["--help"]
    if "--home" not in chosen and chosen[0] in SUBCOMMANDS:
        chosen += ["--home", str(LOCAL_CLOUD_HOME)]
    code = localcloud.pass_on(chosen)
    if code == 0 and chosen[0] == "env" and not {"--json", "--unset", "--help"} & set(chosen):
        click.echo(toolchain.exports(toolchain.environment(toolchain.find())))
    sys.exit(code)
