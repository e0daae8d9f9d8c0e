"""`tpustack check`: checks the stack files."""

from __future__ import annotations

import json
import sys

import click

from infra.catalog import Catalog
from tpustack import options
from tpustack.stacks import files as stacks
from tpustack.stacks.files import Report


@click.command("check")
@options.stack("The stack to check; all of them without it.")
@options.as_json()
def command(stack: str | None, as_json: bool) -> None:
    """Check stack files without engine or cloud; print every problem of all of them at once.

    Exit code 0: all fine, 2: problems.
    """
    catalog = Catalog()
    names = stacks.all_stacks() if stack is None else [stack]
    reports = [stacks.check(name, catalog) for name in names]
    if as_json:
        document = {"stacks": [report.as_json() for report in reports]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))
    else:
        for report in reports:
            _print(report)
    if any(report.problems for report in reports):
        sys.exit(2)


def _print(report: Report) -> None:
    if report.problems:
        count = len(report.problems)
        click.echo(f"{report.stack}: {count} problem{'s' * (count > 1)} ({report.file})", err=True)
        for problem in report.problems:
            click.echo(f"  - {problem}", err=True)
    else:
        click.echo(f"{report.stack}: fine")
        for warning in report.warnings:
            click.echo(f"  warning: {warning}")
