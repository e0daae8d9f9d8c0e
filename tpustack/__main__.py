"""`tpustack`: loads the module of a command only when that command is called.

The engine's SDK, Google's clients and the tables take a second to import, and shell completion
starts this program at each press of the tab key. So the help of all commands is here, as text.
"""

import contextlib
import io
import sys
from typing import NoReturn

import click

from tpustack import console, errors

GROUPS = {
    "A stack": {
        "catalog": "List TPU types, runtimes and machines, with prices.",
        "check": "Check stack files offline and list every problem.",
        "cost": "Show what a stack or a TPU costs.",
        "demo": "Train a model on a local Google Cloud, from scratch.",
        "forecast": "Forecast a training's cost and end, with preemptions.",
        "init": "Create the stack file of a new stack.",
        "local": "Start, stop and inspect the local Google Cloud.",
        "migrate": "Print a stack's settings for Compute Engine.",
        "new": "Create a project of your own.",
        "provider": "Install another generation of Google's provider.",
        "recover": "Repair a stack after a killed update or preemption.",
        "settings": "List every setting of a stack file.",
    },
    "Its training, jobs and machines": {
        "code": "Open VS Code on a stack's VM or TPU.",
        "dashboard": "Serve a live page of stacks, TPUs, jobs and curves.",
        "dataset": "Fetch a dataset for `tpu-training data convert`.",
        "doctor": "Explain the errors in a log or in a stack.",
        "follow": "Follow a stack's training live.",
        "goodput": "Break down a job's wall time, across restarts.",
        "job": "Submit and manage jobs in a stack's queue.",
        "logs": "Print a VM's log, even after the VM is deleted.",
        "notebook": "Run JupyterLab on a stack's VM or TPU.",
        "ssh": "Open a shell on a stack's VM or TPU.",
        "top": "Show duty cycle, HBM and cost of each host, live.",
        "wheel": "Build the training wheel into dist/.",
    },
    "The pipeline": {
        "bootstrap": "Create the pipeline's state bucket, key and identities.",
        "ci": "Run the steps of the pipeline, such as preview.",
        "permissions": "Write the deployer's role as a file for gcloud.",
        "prove": "Ask the real Google Cloud what is still unproven.",
    },
}
COMMANDS = {name: about for group in GROUPS.values() for name, about in group.items()}
# The module and the function of each, below the package.
_WHERE = {
    "bootstrap": "bootstrap:command",
    "catalog": "commands.reference:catalog_command",
    "check": "commands.stack:check_command",
    "ci": "ci.command:command",
    "code": "commands.machines:code_command",
    "cost": "commands.stack:cost_command",
    "dashboard": "dashboard.server:dashboard_command",
    "dataset": "datasets:command",
    "demo": "demo:command",
    "doctor": "commands.training:doctor_command",
    "follow": "commands.training:follow_command",
    "forecast": "commands.forecast:forecast_command",
    "goodput": "commands.training:goodput_command",
    "init": "commands.init:init_command",
    "job": "jobs.command:command",
    "local": "local:local_command",
    "logs": "commands.training:logs_command",
    "migrate": "commands.stack:migrate_command",
    "new": "commands.new:new_command",
    "notebook": "commands.machines:notebook_command",
    "permissions": "commands.stack:permissions_command",
    "provider": "commands.new:provider_command",
    "prove": "commands.prove:prove_command",
    "recover": "commands.recovery:recover_command",
    "settings": "commands.reference:settings_command",
    "ssh": "commands.machines:ssh_command",
    "top": "top:top_command",
    "wheel": "commands.stack:wheel_command",
}


class Commands(console.LazyGroup):
    """The commands of the tables above; `tpustack --help` loads none of their modules."""

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """Leave --help out of its own list, which fills a screen: who reads that has found it."""
        if option := super().get_help_option(ctx):
            option.hidden = True
        return option

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their one-line descriptions, by what they are for."""
        # All groups have their columns in one place.
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:<{width}}", about) for name, about in commands.items()]
                )


@click.group(
    cls=Commands,
    later={name: f"tpustack.{place}" for name, place in _WHERE.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="tpu-stack", prog_name="tpustack")
def cli() -> None:
    """TensorFlow on Cloud TPUs as a Pulumi stack. Completion: docs/commands.md"""


def main() -> None:
    """Run the command line; print an expected error as one message, without a traceback."""
    # What a terminal has no character for is a question mark there, and ends no command.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        with console.handled():
            code = cli.main(prog_name="tpustack", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as asked:
        asked.show()
        sys.exit(asked.exit_code)
    except click.ClickException as error:
        fail(error.format_message(), error.exit_code, getattr(error, "ctx", None))
    except click.Abort:
        fail("the question has no answer", 1)
    except errors.TpustackError as error:
        fail(str(error), error.exit_code)
    except console.Interrupted as interruption:
        from tpustack.engine import toolchain

        toolchain.end_own()
        with contextlib.suppress(OSError):
            click.echo("interrupted; nothing is left running on this machine", err=True)
        sys.exit(interruption.exit_code)
    sys.exit(code)


def fail(what: str, code: int, ctx: click.Context | None = None) -> NoReturn:
    """End with one message, whichever library found the error: `error: what. Try: …`."""
    text = console.plain(what)
    if ctx:
        text = f"{text if text.endswith(('.', '?')) else text + '.'} Try: {ctx.command_path} --help"
    click.echo(f"error: {text}", err=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
