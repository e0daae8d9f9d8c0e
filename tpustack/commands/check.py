"""`tpustack check`: checks the stack files."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from infra.catalog import Catalog
from infra.settings.base import counted
from tpustack import options
from tpustack.errors import UsageError
from tpustack.stacks import files as stacks
from tpustack.stacks.files import Report

if TYPE_CHECKING:
    from tpustack.live.finding import Finding


@click.command("check")
@options.stack("The stack to check; all of them without it.")
@click.option("--live", is_flag=True, help="Also ask Google; needs --stack and credentials.")
@options.as_json()
def command(stack: str | None, live: bool, as_json: bool) -> None:
    """Check stack files without engine or cloud; print every problem of all of them at once.

    With --live, Google is asked before anything is made: whether somebody pays, which APIs are
    enabled, what the caller may do, what the zone offers, what quotas allow, which names are taken,
    which organization policies refuse something.

    Exit code 0: all fine, 2: problems, 3: Google left a question open.
    """
    if live:
        if stack is None:
            raise UsageError("--live asks about one stack: name it with --stack")
        sys.exit(_live(stack, as_json))
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


def _live(stack: str, as_json: bool) -> int:
    """Check a stack's file, then ask Google about it; return the exit code."""
    # They take a while to load, for which only those who ask should wait.
    from tpustack.cloud.google import Google
    from tpustack.live import check
    from tpustack.live.finding import Asked

    catalog = Catalog()
    report = stacks.check(stack, catalog)
    findings: list[Finding] = []
    if not report.problems:
        settings = stacks.load(stack)
        asked = Asked(Google(), settings, stacks.context_of(stack, settings, catalog))
        findings = check.ask(asked)
    if as_json:
        document = {**report.as_json(), "live": [finding.as_json() for finding in findings]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))
    else:
        _print(report)
        _print_findings(findings)
    return 2 if report.problems else check.exit_code(findings)


def _print_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        cure = f". {finding.cure}." if finding.cure else ""
        click.echo(f"  {finding.state:<8}{finding.about:<16}{finding.said}{cure}")


def _print(report: Report) -> None:
    if report.problems:
        count = counted(len(report.problems), "problem")
        click.echo(f"{report.stack}: {count} ({report.file})", err=True)
        for problem in report.problems:
            click.echo(f"  - {problem}", err=True)
    else:
        click.echo(f"{report.stack}: fine")
        for warning in report.warnings:
            click.echo(f"  warning: {warning}")
