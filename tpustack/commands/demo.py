"""`tpustack demo`: trains a model on the local Google Cloud, from nothing."""

from __future__ import annotations

import signal
import sys
from types import FrameType

import click
from rich.console import Console

from tpustack.errors import require


@click.command("demo")
@click.option(
    "--architecture",
    type=click.Choice(["vm", "node"]),
    default="vm",
    show_default=True,
    help="A TPU VM, or the classic TPU node.",
)
@click.option("--keep", is_flag=True, help="Leave the stack and the local cloud up.")
def command(architecture: str, keep: bool) -> None:
    """Run the whole project on this machine: cloud, `pulumi up`, training, `pulumi destroy`."""
    from tpustack.demo.run import Demo

    require("localcloud.cli", "tensorflow")

    # Clean up after a closed terminal or a `kill` as after Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    console = Console(highlight=False)
    try:
        Demo(architecture, keep=keep, console=console).run()
    except KeyboardInterrupt:
        console.print("\ninterrupted; nothing is left running", style="yellow")
        sys.exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
