"""`tpustack`: loads the module of a command only when that command is called.

The engine's SDK, Google's clients and the tables take a second to import, and shell completion
starts this program at each press of the tab key. So the help of all commands is here, as text.
"""

import contextlib
import sys

import click

from tpustack import console, errors

COMMANDS = {
    "bootstrap": "Create what the pipeline needs: state bucket, key, identities.",
    "catalog": "Browse TPU types, runtimes and machine types, with prices.",
    "check": "Check stack files: every problem at once, without engine or cloud.",
    "ci": "Run the pipeline's steps: preview, deploy, drift, sweep.",
    "cost": "Show what a stack or a TPU costs an hour, a day and a run.",
    "dashboard": "Serve a page with stacks, TPUs, jobs, goodput and curves, live.",
    "dataset": "Fetch a data set for `tpu-training data convert`.",
    "demo": "Train a model on the local Google Cloud, from nothing.",
    "doctor": "Find the known errors in a log, or in a stack's logs and states.",
    "follow": "Follow the training on a VM, live, from its serial port.",
    "goodput": "Show where the wall time of a job went, over all of its starts.",
    "init": "Write the settings file of a new stack.",
    "job": "Submit any program to a stack's queue, and look after it.",
    "local": "Start, stop and look into the local Google Cloud.",
    "logs": "Print what a stack's VM wrote, also after the VM is gone.",
    "permissions": "Write the role that a stack's deployer needs, as a file for gcloud.",
    "recover": "Repair a stack whose update was killed, or whose TPU Google took.",
    "settings": "List every setting of a stack file.",
    "wheel": "Build the training wheel into dist/.",
}
# The module and the function of each, below the package.
_WHERE = {
    "bootstrap": "bootstrap:command",
    "catalog": "commands.reference:catalog_command",
    "check": "commands.stack:check_command",
    "ci": "ci.command:command",
    "cost": "commands.stack:cost_command",
    "dashboard": "dashboard.server:dashboard_command",
    "dataset": "datasets:command",
    "demo": "demo:command",
    "doctor": "commands.training:doctor_command",
    "follow": "commands.training:follow_command",
    "goodput": "commands.training:goodput_command",
    "init": "commands.init:init_command",
    "job": "jobs.command:command",
    "local": "local:local_command",
    "logs": "commands.training:logs_command",
    "permissions": "commands.stack:permissions_command",
    "recover": "commands.recovery:recover_command",
    "settings": "commands.reference:settings_command",
    "wheel": "commands.stack:wheel_command",
}


class Commands(console.LazyGroup):
    """The commands of the table above; `tpustack --help` loads none of their modules."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their one-line descriptions."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


@click.group(
    cls=Commands,
    later={name: f"tpustack.{place}" for name, place in _WHERE.items()},
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="tpu-stack", prog_name="tpustack")
def cli() -> None:
    """TensorFlow on Cloud TPUs as a Pulumi stack.

    Shell completion: eval "$(_TPUSTACK_COMPLETE=bash_source tpustack)" (or zsh_source,
    fish_source).
    """


def main() -> None:
    """Run the command line; print an expected error as one message, without a traceback."""
    try:
        with console.handled():
            cli.main(prog_name="tpustack", standalone_mode=True)
    except errors.TpustackError as error:
        click.echo(f"error: {console.plain(str(error))}", err=True)
        sys.exit(error.exit_code)
    except console.Interrupted as interruption:
        from tpustack.engine import toolchain

        toolchain.end_own()
        with contextlib.suppress(OSError):
            click.echo("interrupted; nothing is left running", err=True)
        sys.exit(interruption.exit_code)


if __name__ == "__main__":
    main()
