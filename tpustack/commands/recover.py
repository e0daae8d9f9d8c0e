"""`tpustack recover`: repairs a stack whose update was killed, or whose TPU Google took away."""

from __future__ import annotations

import sys

import click

from tpustack import console
from tpustack.ci import forges
from tpustack.cloud.google import Google
from tpustack.engine.backend import users_own
from tpustack.engine.stack import Stack
from tpustack.errors import TpustackError, UsageError
from tpustack.recovery import taken
from tpustack.recovery.killed_update import Recovery
from tpustack.recovery.locks import LockedError, held, holders
from tpustack.recovery.loop import repeat


@click.command("recover")
@console.stack("The stack to repair.", required=True)
@click.option("--yes", "-y", is_flag=True, help="Release the lock without asking, whoever has it.")
@click.option(
    "--loop", is_flag=True, help="Go on each minute until it is interrupted; ask nothing."
)
def command(stack: str, yes: bool, loop: bool) -> None:
    """Repair a stack whose update was killed, or whose TPU Google took away.

    Releases the lock (after asking, unless its holder is dead for sure), and adds to the state the
    resources that were being created and exist by now.
    Then `pulumi up` and `destroy` work again. Without such resources, it makes TPUs anew that were
    preempted, terminated or deleted, starts a VM that was preempted, and changes nothing else.

    With --loop it waits for updates that may be running, and is for stacks whose machines can't
    bring their TPU back themselves.
    """
    if loop and yes:
        raise UsageError("--yes is not for --loop, which would take every update's lock")
    engine = users_own().select(stack, create=False)
    if loop:
        repeat(lambda: _repair(engine, stack, asked=False, alone=True), _say)
    else:
        _repair(engine, stack, asked=yes, alone=False)


def _repair(engine: Stack, stack: str, *, asked: bool, alone: bool) -> None:
    """Repair the stack once; `alone` means that nobody is there to answer or to read much."""
    recovery = engine.recovery(_say, forges.has_ended)
    try:
        _release(recovery, stack, asked=asked, alone=alone)
        interrupted = recovery.take_in()
    except LockedError as error:
        raise TpustackError(held(stack, error.locks)) from None
    for urn in interrupted:
        click.echo(urn)
    if interrupted:
        click.echo(f"Run `pulumi up --stack {stack}` to go on.")
    elif not alone:
        click.echo("Nothing was being created.")
    if not interrupted:
        _bring_back(engine)


def _release(recovery: Recovery, stack: str, *, asked: bool, alone: bool) -> None:
    """Release the lock, if there is one. Raises TpustackError if its holder may be at work."""
    locks = recovery.locks()
    if locks is None:
        return
    whose = holders(locks)
    if not asked and not recovery.are_orphaned(locks):
        if alone or not sys.stdin.isatty():
            raise LockedError(locks)
        told = f"stack {stack} is locked by {whose}, who may be at work"
        click.confirm(f"{told}. Release the lock?", abort=True)
    recovery.release(locks)
    click.echo(f"Released the lock of {whose}.")


def _bring_back(engine: Stack) -> None:
    outputs = engine.outputs()
    google, resources = Google(), engine.resources()
    lost = taken.lost(google, outputs) if "tpu_names" in outputs else {}
    for name, state in lost.items():
        click.echo(f"The TPU {name} is {state}; it is made anew.")
    vms = taken.lost_vms(google, resources)
    for urn, state in vms.items():
        click.echo(f"The VM is {state} ({urn.rpartition('::')[2]}); it is started again.")
    if lost or vms:
        engine.renew([*(taken.targets(resources) if lost else ()), *vms], _say)
        back = [machine for machine, there in (("TPU", lost), ("VM", vms)) if there]
        verb = "are" if len(back) > 1 else "is"
        click.echo(f"The {' and the '.join(back)} {verb} back.")
        click.echo("A trainer goes on from its last checkpoint.")


def _say(line: str) -> None:
    click.echo(line, err=True)
