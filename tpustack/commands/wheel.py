"""`tpustack wheel`: builds the training wheel."""

from __future__ import annotations

import click

from tpustack.project import root
from tpustack.stacks import wheel


@click.command("wheel")
def command() -> None:
    """Build the training wheel into dist/; the stack uploads it to the bucket."""
    click.echo(wheel.build().relative_to(root()))
