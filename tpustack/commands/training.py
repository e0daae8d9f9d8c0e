"""The commands that watch a training: follow, logs, doctor, goodput.

Each imports what it needs when it runs: together these take seconds to load.
"""

import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, BinaryIO

import click

from tpustack import console, errors
from tpustack.engine import named
from tpustack.logs.diagnosis import CAUSE, FIX, Excerpt, Finding, diagnose, errors_page, translated


@click.command("follow")
@console.stack("The stack whose training to follow.")
@click.option("--verbose", "-v", is_flag=True, help="Also print what the VM writes as it boots.")
def follow_command(stack: str | None, verbose: bool) -> None:
    """Follow the training of a stack, live, until it ends.

    The VM's output comes from its serial port. Google shows none of a TPU VM, so a trainer there
    is followed by what it writes to the bucket. At the end it shows what still costs money, and
    the command that deletes it.
    """
    from rich.console import Console

    from tpu_infra.catalog import Catalog
    from tpu_infra.cost import of_stack, until_destroyed
    from tpu_infra.settings.machines import RunOn
    from tpustack import stacks
    from tpustack.logs.serial import follow

    stack = named(stack)
    outputs = _outputs(stack)
    on_tpu, costs = False, f"TPU and VM keep costing until `pulumi destroy --stack {stack}`."
    try:
        settings = stacks.load(stack)
        # Google shows the serial port of a machine of Compute Engine, unlike that of a TPU VM.
        on_tpu = settings.training.run_on is RunOn.TPU and not settings.is_compute
        costs = f"{until_destroyed(of_stack(settings, stack, Catalog()), settings, stack)}."
    except errors.UsageError:
        pass  # The file is in the middle of a change, which ends no training.
    advice = f"`tpustack doctor --stack {stack}` looks for the cause in the stack's logs and states"
    if on_tpu:
        read = "journalctl --unit=google-startup-scripts --unit=tpu-stack-agent"
        shell = f"`tpustack ssh --stack {stack} --tpu -- {read}`"
        advice = f"{shell} shows what the TPU VM writes. {advice}"
    try:
        follow(Console(), outputs, advice=advice, on_tpu=on_tpu, verbose=verbose)
    finally:
        click.echo(costs)


def _outputs(stack: str | None) -> Mapping[str, Any]:
    """Return what `pulumi up` has put out, as tpu_infra.program names it. Raises TpustackError."""
    # The engine's library takes seconds to load.
    from tpustack.engine.backend import outputs_of

    return outputs_of(stack)


@click.command("logs")
@console.stack("The stack whose VM to read.")
def logs_command(stack: str | None) -> None:
    """Print what a stack's VM wrote to its serial port, also after the VM is gone.

    Cloud Logging keeps it for 30 days. Project and name of the VM come from the stack's file, so
    it works after `pulumi destroy`, too.
    """
    from tpu_infra.names import names_of
    from tpustack import stacks
    from tpustack.cloud.google import Google
    from tpustack.logs.serial import logged_lines

    stack = named(stack)
    settings = stacks.load(stack)
    project, vm = settings.project, names_of(settings, stack).vm
    # By names alone: the engine's outputs are gone after `pulumi destroy`.
    found = list(logged_lines(Google(), project, vm))
    if not found:
        raise errors.TpustackError(
            f"Cloud Logging has nothing from the last 30 days of a VM {vm} in {project}. Either no "
            "such VM ran, or serial port logging is off: the VM's metadata "
            "serial-port-logging-enable is not true, or the organization policy "
            f"compute.disableSerialPortLogging forbids it. While the VM runs, `tpustack follow "
            f"--stack {stack}` reads its serial port"
        )
    # A group may have replaced its VM, and two machines of one name ran at different times.
    for instance, group in groupby(found, key=lambda line: line[0]):
        lines = list(group)
        click.echo(f"{vm} (number {instance}) from {lines[0][1]} on:")
        for _, _, text in lines:
            click.echo(f"  {text}")


# The lines of an error that are named, and the unknown errors that are shown.
_MOST_LINES, _MOST_UNKNOWN = 5, 20
# The known error of a step that does not fit (known_errors.json).
_MEMORY = "device-memory"
# The trainer's last words, which are printed first.
_ENDED = "training failed: "


@click.command("doctor")
@click.argument("file", type=click.File("rb"), required=False)
@console.stack("The stack to look into.")
@console.as_json()
@click.option("--markdown", "as_page", is_flag=True, help="Print the page docs/errors.md.")
def doctor_command(file: BinaryIO | None, stack: str | None, as_json: bool, as_page: bool) -> None:
    """Find the known errors in a log (`-`: standard input), with their causes and fixes.

    Without FILE: look into a stack's own logs and states, through Google's APIs.

    Exit code 0: nothing found, 1: errors found, 2: wrong input.
    """
    if as_page:
        if file is not None or stack is not None or as_json:
            raise errors.UsageError("--markdown stands alone")
        click.echo(errors_page(), nl=False)
        return
    if file is not None and stack is not None:
        raise errors.UsageError("--stack and FILE exclude each other")
    texts = _of_stack(stack) if file is None else iter([(file.name, _read(file))])
    diagnoses = [diagnose(source, text) for source, text in texts]
    findings = [found for one in diagnoses for found in one.findings]
    unknown = [found for one in diagnoses for found in one.unknown]
    fits = None
    if file is None and any(found.known.id == _MEMORY for found in findings):
        fits = _what_fits(stack)
    if as_json:
        known = [found.as_json() for found in findings]
        others = [found.as_json() for found in unknown]
        console.echo_json({"findings": known, "unknown": others, "fits": fits})
    else:
        _print_errors(findings, unknown, fits)
    if findings or unknown:
        sys.exit(1)


def _read(file: BinaryIO) -> str:
    """Return a log's text: a pasted one may have bytes of any encoding, and errors are ASCII."""
    try:
        content = file.read()
    except OSError as error:
        raise errors.UsageError(f"{file.name} can't be read: {error.strerror}") from None
    return content.decode("utf-8", errors="replace")


def _of_stack(stack: str | None) -> Iterator[tuple[str, str]]:
    """Return the names and texts of a stack's own logs. Raises TpustackError."""
    from tpustack.cloud.google import Google
    from tpustack.logs.serial import stack_texts

    outputs = _outputs(stack)
    return stack_texts(Google(), outputs)


def _what_fits(stack: str | None) -> str:
    """Return the largest batch that fits the stack's TPU, or how to find it out."""
    from tpu_training.compile import largest_batch
    from tpustack import stacks

    settings = stacks.load(named(stack))
    answer = stacks.answer_of(settings)[1]
    known = largest_batch(answer) if answer else None
    return known or f"`{stacks.asking(settings)}` finds the largest batch that fits"


def _print_errors(findings: list[Finding], unknown: list[Excerpt], fits: str | None) -> None:
    """Print errors for people, the trainer's last words first: they are why the training ended."""
    unknown = sorted(unknown, key=_comes_later)
    found: list[Excerpt] = [*findings, *unknown[:_MOST_UNKNOWN]]
    # One cause in several logs, such as a preemption, is explained once, below all of its places.
    groups: dict[object, list[Excerpt]] = {}
    for one in sorted(found, key=_comes_later):
        key = one.known.id if isinstance(one, Finding) else one
        groups.setdefault(key, []).append(one)
    for group in groups.values():
        known = group[0].known if isinstance(group[0], Finding) else None
        for one in group:
            lines = ",".join(map(str, one.lines[:_MOST_LINES]))
            if (left := len(one.lines) - _MOST_LINES) > 0:
                lines += f" and {left} more"
            name = known.id if known else "unknown error"
            click.echo(f"{one.source}:{lines}: {name}: {one.text}")
        if known is None:
            continue
        if chinese := translated(known):
            click.echo(f"  {CAUSE}{chinese[0]}\n  {FIX}{chinese[1]}")
        click.echo(f"  cause: {known.cause}")
        click.echo(f"  fix:   {known.fix}")
        if fits and known.id == _MEMORY:
            click.echo(f"  fits:  {fits}")
        click.echo(f"  see:   {known.link}")
    if len(unknown) > _MOST_UNKNOWN:
        click.echo(f"{len(unknown) - _MOST_UNKNOWN} more unknown errors; --json shows all")
    if not found:
        click.echo("Nothing found.")


def _comes_later(one: Excerpt) -> bool:
    # Sorting is stable: all others keep the order of the log.
    return _ENDED not in one.text


@click.command("goodput")
@click.argument("what", metavar="[JOB | MODEL_DIR]", required=False)
@console.stack("The stack whose job to look at.")
@console.as_json("account")
def goodput_command(what: str | None, stack: str | None, as_json: bool) -> None:
    """Show where a job's wall time went, over all of its starts, machines and TPUs.

    Goodput is the part in steps that count; the rest is shown by its cause. With --stack, JOB is a
    job of its queue; without JOB, the stack's own training is shown. The cost of the time is shown,
    too. MODEL_DIR is any training's directory, here or gs://…
    """
    from tpu_core import ledger as ledgers
    from tpu_core.words import plural
    from tpu_training.goodput import account as accounts
    from tpustack import goodput

    ends: list[tuple[float, str]] = []
    if what and stack:
        where, ends = _job_of_queue(stack, what)
    else:
        where = what or str(_outputs(stack)["job_url"])
    ledger = ledgers.ended_by(ledgers.read(goodput.files_of(where)), ends)
    if not ledger.entries:
        broken = "".join(f"; {problem}" for problem in ledger.problems)
        raise errors.TpustackError(f"{where}: no training has written a ledger there{broken}")
    total = accounts.account(ledger)
    money = None
    # What MODEL_DIR cost is not known: no stack is named that it ran on.
    if stack or not what:
        from tpu_infra import catalog, cost
        from tpustack import stacks

        # By the stack's settings as they are now: the ledger has none of its own.
        name = named(stack)
        estimate = cost.of_stack(stacks.load(name), name, catalog.Catalog())
        money = goodput.money_of(total, estimate)
    if as_json:
        spent = money and money.to_dict()
        console.echo_json({**total.to_dict(), "cost": spent, "problems": ledger.problems})
    else:
        for table in goodput.tables(total, money, console.columns()):
            click.echo(table + "\n")
        click.echo(
            f"goodput {total.goodput:.1%}: {plural(total.steps, 'step')} in "
            f"{plural(total.starts, 'start')}, {total.lost_steps:,} lost"
            + (f"; {money}" if money else "")
        )
    for problem in ledger.problems:
        click.echo(problem, err=True)


def _job_of_queue(stack: str, name: str) -> tuple[str, list[tuple[float, str]]]:
    """Return the model directory of a job in a stack's queue; when its tries began, why they ended.

    A ledger does not know why its machine went; the job's record does. Vertex AI is not asked:
    what it knows beyond the record changes no ledger.
    """
    from tpu_core import paths
    from tpustack.jobs.job import read_job
    from tpustack.jobs.queue import explained, open_queue

    queue = open_queue(stack, None)
    with explained(queue):
        job = read_job(queue, name, ask=False)
    ends = [(one.started, one.why) for one in job.tries]
    return f"gs://{queue.store.bucket}/{paths.folder(name)}model", ends
