"""`tpustack demo`: trains a model on the local Google Cloud, from nothing."""

from __future__ import annotations

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

    console = Console(highlight=False)
    Demo(architecture, keep=keep, console=console).run()
