"""`tpustack wheel`: builds the training wheel."""

from __future__ import annotations

import click

from tpustack import project
from tpustack.project import root


@click.command("wheel")
def command() -> None:
    """Build the training wheel into dist/; the stack uploads it to the bucket."""
    click.echo(project.build_wheel().relative_to(root()))
