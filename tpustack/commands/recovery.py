"""`tpustack recover`: repairs a stack after an interrupted update or a preempted TPU.

It does from outside what the agent does on a machine: once, or in a loop for stacks whose machines
can't. What the state knows decides what is recreated, so a preview afterwards shows no change.
"""

import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import click

from tpu_core import times, tpu
from tpustack import console, errors
from tpustack.ci import forge
from tpustack.cloud.google import Google, Nodes, zones_of
from tpustack.engine import named
from tpustack.engine.backend import users_own
from tpustack.engine.stack import Stack
from tpustack.recovery.locks import LockedError, holder_names, locked_message
from tpustack.recovery.machines import Lives, lost_slices, lost_vms
from tpustack.recovery.repair import Recovery


@click.command("recover")
@console.stack("The stack to repair.")
@click.option("--yes", "-y", is_flag=True, help="Release the lock without asking.")
@click.option("--loop", is_flag=True, help="Repeat each minute until interrupted; ask nothing.")
def recover_command(stack: str | None, yes: bool, loop: bool) -> None:
    """Repair a stack after an interrupted update or a preempted TPU.

    Releases the lock (after asking, unless its holder is dead for sure), and adds to the state the
    resources that were being created and exist by now.
    Then `pulumi up` and `destroy` work again. Without such resources, it recreates TPUs that were
    preempted, terminated or deleted, starts a VM that was preempted, and changes nothing else.

    With --loop it waits for updates that may be running, and is for stacks whose machines can't
    bring their TPU back themselves.
    """
    if loop and yes:
        raise errors.UsageError("--yes is not for --loop, which would take every update's lock")
    stack = stack or named(None)
    engine = users_own().stack(stack)
    engine.resources()  # Refuses a stack that isn't there, also with --loop.
    if loop:
        repeat(lambda: _repair(engine, stack, asked=False, alone=True), console.say)
    else:
        _repair(engine, stack, asked=yes, alone=False)


def _repair(engine: Stack, stack: str, *, asked: bool, alone: bool) -> None:
    """Repair the stack once; `alone` means without a terminal."""
    recovery = engine.recovery(console.say, forge.has_ended)
    try:
        _release(recovery, stack, asked=asked, alone=alone)
        interrupted = recovery.take_up()
    except LockedError as error:
        raise errors.TpustackError(locked_message(stack, error.locks)) from None
    for urn in interrupted:
        click.echo(urn)
    if interrupted:
        click.echo(f"Run `pulumi up --stack {stack}` to continue.")
    elif not alone:
        click.echo("Nothing was being created.")
    if not interrupted:
        _bring_back(engine)


def _release(recovery: Recovery, stack: str, *, asked: bool, alone: bool) -> None:
    """Release the lock, if there is one. Raises TpustackError if its holder may be at work."""
    locks = recovery.locks()
    if locks is None:
        return
    whose = holder_names(locks)
    if not asked and not recovery.are_orphaned(locks):
        if alone or not sys.stdin.isatty():
            raise LockedError(locks)
        question = f"stack {stack} is locked by {whose}, who may be at work. Release the lock?"
        if not click.confirm(question):
            raise LockedError(locks)
    recovery.release(locks)
    click.echo(f"Released the lock of {whose}.")


def _bring_back(engine: Stack) -> None:
    outputs = engine.outputs()
    google, resources = Google(), engine.resources()
    # A stack whose first `up` was killed has no outputs.
    lost = lost_tpus(google, outputs) if "tpu_names" in outputs else {}
    for name, state in lost.items():
        click.echo(f"The TPU {name} is {state}; it is recreated.")
    lives = Lives(google, str(outputs.get("bucket_name")), resources, click.echo)
    vms = lives.left(lost_vms(google, resources))
    for urn, state in vms.items():
        click.echo(f"The VM is {state} ({urn.rpartition('::')[2]}); it is started again.")
    slices = lives.left(lost_slices(google, resources))
    for urn, state in slices.items():
        name = urn.rpartition("::")[2]
        click.echo(f"The TPU is {state} ({name}); all its machines are deleted and recreated.")
    if lost or vms or slices:
        urns = [*(tpu_urns(resources) if lost else ()), *vms, *slices]
        engine.renew(urns, console.say, tuple(slices))
        lives.note((*vms, *slices))
        tpus = lost or slices
        back = "TPU and the VM are" if tpus and vms else "TPU is" if tpus else "VM is"
        click.echo(f"The {back} back.")
        click.echo("A trainer continues from its last checkpoint.")


# --- TPUs that Google has taken.

# The forms of a TPU, and what waits for one out of the queue.
_TYPES = (
    "gcp:tpu/v2Vm:V2Vm",
    "gcp:tpu/node:Node",
    "pulumi-python:dynamic/tpu:QueuedResource",
    "pulumi-python:dynamic/tpu:QueuedNode",
)


def lost_tpus(google: Google, outputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the TPUs of a stack that Google has taken for good, each with its state.

    Args:
        google: the APIs.
        outputs: the stack's, as infra/tpu_infra/program.py names them.

    Raises:
        TpustackError: when the caller may not look, with the API's own message.
    """
    if outputs.get("architecture") == "compute":
        return {}  # `lost_vms` and `lost_slices` (recovery/machines.py) find it.
    found = {}
    nodes, zones = Nodes(google, outputs["project"]), zones_of(outputs)
    for name in outputs["tpu_names"]:
        node = nodes.find(zones, name)
        state = node[1].get("state", "") if node else "gone"
        if node is None or tpu.phase_of(state) == "lost":
            found[name] = state
    return found


def tpu_urns(resources: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the URNs in a stack's state that are its TPUs."""
    return [resource["urn"] for resource in resources if resource["type"] in _TYPES]


LOOK_SECONDS = 60.0
_LONGEST_SECONDS = 3600.0


def repeat(
    once: Callable[[], object],
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    chance: Callable[[], float] = random.random,
) -> None:
    """Call `once` each minute, for ever; after failures in a row each time later, up to an hour."""
    for pause in looks(once, say, chance):
        sleep(pause)


def looks(
    once: Callable[[], object], say: Callable[[str], None], chance: Callable[[], float]
) -> Iterator[float]:
    """Call `once` for each pause that is asked for, and yield the seconds until the next."""
    failures = 0
    while True:
        try:
            once()
            failures = 0
        except errors.TpustackError as error:
            failures += 1
            say(f"trying again: {error}")
        pause = times.backoff(failures, LOOK_SECONDS, _LONGEST_SECONDS, chance)
        yield pause if failures else LOOK_SECONDS
