"""`tpustack wheel`: the training wheel."""

from __future__ import annotations

import click

from tpustack import wheel
from tpustack.project import ROOT


@click.command("wheel")
def command() -> None:
    """Build the training wheel into dist/; the stack uploads it to the bucket."""
    click.echo(wheel.build().relative_to(ROOT))
