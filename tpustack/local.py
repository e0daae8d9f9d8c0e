"""The local Google Cloud, run by its command line; `tpustack local` passes it on.

It is a distribution of its own that knows nothing of this project, so it is started as a process
and asked in JSON, never imported.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tpustack import project
from tpustack.engine import toolchain
from tpustack.errors import TpustackError, UsageError, require


class LocalCloudCommand:
    """Runs `python -m localcloud` on one home folder."""

    def __init__(self, home: Path | None = None) -> None:
        self.home = home or project.local_cloud_home()

    def arguments(self, *arguments: str) -> list[str]:
        """Return the command as an argument list."""
        require("localcloud.cli")
        return [sys.executable, "-m", "localcloud", *arguments, "--home", str(self.home)]

    def run(self, *arguments: str) -> str:
        """Run a subcommand and return its output.

        Raises:
            TpustackError: with what it wrote to stderr when it fails.
        """
        done = subprocess.run(
            self.arguments(*arguments), capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise TpustackError(f"the local cloud's `{arguments[0]}` failed: {done.stderr.strip()}")
        return done.stdout

    def status(self) -> dict[str, Any]:
        """Return port, resources and processes of the running cloud."""
        return dict(json.loads(self.run("status", "--json")))

    def environment(self) -> dict[str, str]:
        """Return the variables that lead Google's clients to the local cloud."""
        return dict(json.loads(self.run("env", "--json")))


def pass_on(arguments: Sequence[str]) -> int:
    """Run the local cloud's own command line on this terminal, as `tpustack local`.

    Outside the project it keeps its state in the folder where it is started.
    """
    require("localcloud.cli")
    # Its help and its cures name the command that the user has typed.
    variables = {**os.environ, "LOCALCLOUD_PROG": "tpustack local"}
    with contextlib.suppress(UsageError):
        variables["LOCALCLOUD_HOME"] = str(project.local_cloud_home())
    command = [sys.executable, "-m", "localcloud", *arguments]
    return subprocess.run(command, env=variables, check=False).returncode


@click.command(
    "local",
    context_settings={"ignore_unknown_options": True, "help_option_names": []},
    short_help="Start, stop and look into the local Google Cloud.",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def local_command(arguments: tuple[str, ...]) -> None:
    """Run a command of the local cloud; `env --backend` adds Pulumi with the demo's stacks."""
    backend = arguments == ("env", "--backend")
    code = pass_on(arguments[:1] if backend else arguments or ("--help",))
    if code == 0 and backend:
        variables = toolchain.environment(toolchain.find(), project.state())
        for name, value in variables.items():
            click.echo(f"export {name}={shlex.quote(value)}")
        where = project.state().name
        click.echo(f"and Pulumi's, for the stacks in {where}: {', '.join(variables)}", err=True)
    sys.exit(code)
