"""`tpustack logs`: prints what a stack's VM wrote, from Cloud Logging."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING

import click

from tpustack import console
from tpustack.errors import TpustackError

if TYPE_CHECKING:
    from tpustack.logs.cloud_logging import Line


@click.command("logs")
@console.stack("The stack whose VM to read.", required=True)
@console.as_json("lines")
def command(stack: str, as_json: bool) -> None:
    """Print what a stack's VM wrote to its serial port, also after the VM is gone.

    Cloud Logging keeps it for 30 days. Project and name of the VM come from the stack's file, so
    it works after `pulumi destroy`, too.
    """
    from infra.names import names_of
    from tpustack.cloud.google import Google
    from tpustack.logs.cloud_logging import lines
    from tpustack.stacks.files import load, require_file

    require_file(stack)
    settings = load(stack)
    project, vm = settings.project, names_of(settings, stack).vm
    found = list(lines(Google(), project, vm))
    if not found:
        raise TpustackError(_nothing(stack, project, vm))
    if as_json:
        document = {"project": project, "vm": vm, "lines": [asdict(line) for line in found]}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print(vm, found)


def _print(vm: str, found: Iterable[Line]) -> None:
    for instance, said in groupby(found, key=lambda line: line.instance):
        first, *others = said
        click.echo(f"{vm} (number {instance}) from {first.time} on:")
        for line in (first, *others):
            click.echo(f"  {line.text}")


def _nothing(stack: str, project: str, vm: str) -> str:
    return (
        f"Cloud Logging has nothing from the last 30 days of a VM {vm} in {project}. Either no "
        "such VM ran, or serial port logging is off: the VM's metadata serial-port-logging-enable "
        "is not true, or the organization policy compute.disableSerialPortLogging forbids it. "
        f"While the VM runs, `tpustack follow --stack {stack}` reads its serial port"
    )
