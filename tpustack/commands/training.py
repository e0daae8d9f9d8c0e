"""The commands that watch a training: follow, logs, doctor, goodput, dashboard."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from tpustack import console
from tpustack.errors import TpustackError, UsageError
from tpustack.logs.diagnosis import Diagnosis, Finding, Unknown, diagnose, errors_page

if TYPE_CHECKING:
    from infra.settings import StackSettings
    from tpu_agent.jobs.queue import Try
    from tpu_training.goodput.account import Account
    from tpu_training.goodput.ledger import Ledger
    from tpustack.goodput import Money
    from tpustack.logs.serial import LogLine


@click.command("follow")
@console.stack("The stack whose training to follow.", required=True)
def follow_command(stack: str) -> None:
    """Follow the training of a stack, live, until it ends.

    The VM's output comes from its serial port. Google shows none of a TPU VM: a trainer there is
    followed by what it writes to the bucket. At the end it says what keeps costing, and which
    command ends that.
    """
    from rich.console import Console

    from infra.settings.machines import RunOn
    from tpustack.engine.backend import outputs_of
    from tpustack.logs.serial import follow

    advice = f"`tpustack doctor --stack {stack}` looks for the cause in the stack's logs and states"
    outputs, settings = outputs_of(stack), _settings(stack)
    on_tpu = settings is not None and settings.training.run_on is RunOn.TPU
    try:
        follow(Console(), outputs, advice=advice, on_tpu=on_tpu)
    finally:
        click.echo(_goes_on(stack, settings))


def _settings(stack: str) -> StackSettings | None:
    """Return the stack's settings; None while its file is in the middle of a change."""
    from tpustack.stacks import load

    try:
        return load(stack)
    except UsageError:
        return None


def _goes_on(stack: str, settings: StackSettings | None) -> str:
    from infra.catalog import Catalog
    from infra.cost import of_stack, until_destroyed

    if settings is None:
        return f"TPU and VM keep costing until `pulumi destroy --stack {stack}`."
    return f"{until_destroyed(of_stack(settings, stack, Catalog()), settings, stack)}."


@click.command("logs")
@console.stack("The stack whose VM to read.", required=True)
@console.as_json("lines")
def logs_command(stack: str, as_json: bool) -> None:
    """Print what a stack's VM wrote to its serial port, also after the VM is gone.

    Cloud Logging keeps it for 30 days. Project and name of the VM come from the stack's file, so
    it works after `pulumi destroy`, too.
    """
    from infra.names import names_of
    from tpustack.cloud.google import Google
    from tpustack.logs.serial import logged_lines
    from tpustack.stacks import load, require_file

    require_file(stack)
    settings = load(stack)
    project, vm = settings.project, names_of(settings, stack).vm
    found = list(logged_lines(Google(), project, vm))
    if not found:
        raise TpustackError(_nothing(stack, project, vm))
    if as_json:
        document = {"project": project, "vm": vm, "lines": [asdict(line) for line in found]}
        console.echo_json(document)
    else:
        _print_lines(vm, found)


def _print_lines(vm: str, found: Iterable[LogLine]) -> None:
    for instance, group in groupby(found, key=lambda line: line.instance):
        first, *others = group
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


_MOST_LINES = 5
# The known error of a step that does not fit (known_errors.json).
_MEMORY = "device-memory"
_MOST_UNKNOWN = 20
_ENDED = "training failed: "
"""The trainer's last words, which are printed first."""


@click.command("doctor")
@click.argument("file", type=click.File("rb"), required=False)
@console.stack("The stack to look into; without it the one Pulumi selected.")
@console.as_json()
@click.option("--markdown", "as_page", is_flag=True, help="Print the page docs/troubleshooting.md.")
def doctor_command(file: BinaryIO | None, stack: str | None, as_json: bool, as_page: bool) -> None:
    """Find the known errors in a log (`-`: standard input); say their causes and cures.

    Without FILE: look into a stack's own logs and states, through Google's APIs.

    Exit code 0: nothing found, 1: errors found, 2: wrong input.
    """
    if as_page:
        if file is not None or stack is not None or as_json:
            raise UsageError("--markdown stands alone")
        click.echo(errors_page(), nl=False)
        return
    if file is not None and stack is not None:
        raise UsageError("--stack and FILE exclude each other")
    texts = _of_stack(stack) if file is None else iter([(file.name, _read(file))])
    diagnoses = [diagnose(source, text) for source, text in texts]
    short = file is None and any(found.known.id == _MEMORY for found in _findings(diagnoses))
    fits = _what_fits(stack) if short else None
    if as_json:
        document = {**_document(diagnoses), "fits": fits}
        console.echo_json(document)
    else:
        _print_diagnoses(diagnoses, fits)
    if any(diagnosis.findings or diagnosis.unknown for diagnosis in diagnoses):
        sys.exit(1)


def _read(file: BinaryIO) -> str:
    try:
        content = file.read()
    except OSError as error:
        raise UsageError(f"{file.name} can't be read: {error.strerror}") from None
    return content.decode("utf-8", errors="replace")


def _of_stack(stack: str | None) -> Iterator[tuple[str, str]]:
    from tpustack.cloud.google import Google
    from tpustack.engine.backend import outputs_of
    from tpustack.logs import serial as stack_logs

    outputs = outputs_of(stack)
    return stack_logs.stack_texts(Google(), outputs)


def _what_fits(stack: str | None) -> str:
    """Return the largest batch that fits the stack's TPU, or how to find it out."""
    from tpu_training.compile import largest_batch
    from tpustack import stacks
    from tpustack.engine.backend import name_of
    from tpustack.project import root
    from tpustack.stacks import answer_of, asking, manifest_of

    settings = stacks.load(name_of(stack))
    answer = answer_of(settings, manifest_of(settings, root()))
    known = largest_batch(answer) if answer else None
    return known or f"`{asking(settings)}` finds the largest batch that fits"


def _findings(diagnoses: list[Diagnosis]) -> list[Finding]:
    return [found for diagnosis in diagnoses for found in diagnosis.findings]


def _document(diagnoses: list[Diagnosis]) -> dict[str, object]:
    return {
        "findings": [found.as_json() for found in _findings(diagnoses)],
        "unknown": [found.as_json() for one in diagnoses for found in one.unknown],
    }


def _print_diagnoses(diagnoses: list[Diagnosis], fits: str | None) -> None:
    unknown = sorted((one for each in diagnoses for one in each.unknown), key=_comes_later)
    found: list[Finding | Unknown] = [*_findings(diagnoses), *unknown[:_MOST_UNKNOWN]]
    for one in sorted(found, key=_comes_later):
        known = one.known if isinstance(one, Finding) else None
        what = known.id if known else "unknown error"
        click.echo(f"{one.source}:{_numbers(one.lines)}: {what}: {one.text}")
        if known is None:
            continue
        click.echo(f"  cause: {known.cause}")
        click.echo(f"  cure:  {known.cure}")
        if fits and known.id == _MEMORY:
            click.echo(f"  fits:  {fits}")
        click.echo(f"  see:   {known.link}")
    if len(unknown) > _MOST_UNKNOWN:
        click.echo(f"{len(unknown) - _MOST_UNKNOWN} more unknown errors; --json shows all")
    if not found:
        click.echo("Nothing found.")


def _comes_later(one: Finding | Unknown) -> bool:
    return _ENDED not in one.text


def _numbers(lines: tuple[int, ...]) -> str:
    shown = ",".join(map(str, lines[:_MOST_LINES]))
    left = len(lines) - _MOST_LINES
    return f"{shown} and {left} more" if left > 0 else shown


@click.command("goodput")
@click.argument("what", metavar="[JOB | MODEL_DIR]", required=False)
@console.stack("The stack whose job to look at; without it the one Pulumi selected.")
@console.as_json("account")
@click.option("--plot", metavar="FILE", help="Also draw the timeline: NAME.png or NAME.svg.")
@click.option(
    "--prometheus",
    metavar="FILE",
    help="Also write metrics for Prometheus, such as for node exporter's textfile collector; - "
    "prints them and nothing else.",
)
def goodput_command(
    what: str | None,
    stack: str | None,
    as_json: bool,
    plot: str | None,
    prometheus: str | None,
) -> None:
    """Show what a job's wall time went into, over all of its starts, machines and TPUs.

    Goodput is the part in steps that count; the rest is shown by its cause. With --stack, JOB is
    one of its queue, and without JOB its training is looked at; what the time has cost is shown,
    too. MODEL_DIR is any training's directory, here or gs://…
    """
    _refuse(as_json, plot, prometheus)
    from tpu_training.goodput.account import account
    from tpu_training.goodput.ledger import ended_by, read
    from tpustack.goodput import files_of

    tries: Sequence[Try] = ()
    if what and stack:
        where, tries = _job_of_queue(stack, what)
    else:
        where = what or _job_of(stack)
    ledger = ended_by(read(files_of(where)), [(one.started, one.why) for one in tries])
    if not ledger.entries:
        broken = "".join(f"; {problem}" for problem in ledger.problems)
        raise TpustackError(f"{where}: no training has written a ledger there{broken}")
    total = account(ledger)
    money = None if what and not stack else _money(stack, total)
    if plot:
        _draw(Path(plot), ledger, total)
    if prometheus:
        _write_prometheus(prometheus, total, where)
    if as_json:
        cost = money and money.to_dict()
        document = {**total.to_dict(), "cost": cost, "problems": ledger.problems}
        console.echo_json(document)
    elif prometheus != "-":
        _print_account(total, money)
    for problem in ledger.problems:
        click.echo(problem, err=True)


def _refuse(as_json: bool, plot: str | None, prometheus: str | None) -> None:
    """Raise UsageError with all that is wrong with the options."""
    from tpu_training.goodput.picture import KINDS

    wrong = []
    if plot is not None and Path(plot).suffix.removeprefix(".") not in KINDS:
        wrong.append(f"--plot={plot}: expected {' or '.join(f'NAME.{kind}' for kind in KINDS)}")
    if prometheus == "-" and as_json:
        wrong.append(
            "--prometheus=- and --json both print to standard output: give --prometheus a file"
        )
    for name, path in (("--plot", plot), ("--prometheus", prometheus)):
        if path not in (None, "-") and not Path(path).absolute().parent.is_dir():
            wrong.append(f"{name}={path}: there is no folder {Path(path).parent}")
    if wrong:
        raise UsageError("; ".join(wrong))


def _job_of(stack: str | None) -> str:
    from tpustack.engine.backend import outputs_of

    return str(outputs_of(stack)["job_url"])


def _job_of_queue(stack: str, name: str) -> tuple[str, Sequence[Try]]:
    """Return the model directory of a job in a stack's queue, and its tries."""
    from tpu_core import paths
    from tpustack.jobs.job import read_job
    from tpustack.jobs.queue import explained, open_queue

    queue = open_queue(stack, None)
    with explained(queue):
        job = read_job(queue, name, ask=False)
    return f"gs://{queue.store.bucket}/{paths.folder(name)}model", job.tries


def _money(stack: str | None, total: Account) -> Money:
    from infra.catalog import Catalog
    from infra.cost import of_stack
    from tpustack.engine.backend import name_of
    from tpustack.goodput import money_of
    from tpustack.stacks import load

    name = name_of(stack)
    return money_of(total, of_stack(load(name), name, Catalog()))


def _draw(path: Path, ledger: Ledger, total: Account) -> None:
    from tpu_training.errors import InputError
    from tpu_training.goodput.picture import draw

    try:
        path.write_bytes(draw(ledger, total, path.suffix.removeprefix(".")))
    except (InputError, OSError) as error:
        raise TpustackError(f"--plot={path}: {error}") from None


def _write_prometheus(target: str, total: Account, where: str) -> None:
    """Write the whole file or none: node exporter may read it at any time."""
    from tpu_training.goodput.account import to_prometheus

    text = to_prometheus(total, where.rstrip("/").rpartition("/")[2])
    if target == "-":
        click.echo(text, nl=False)
        return
    path = Path(target)
    unfinished = path.with_name(f".{path.name}.unfinished")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise TpustackError(f"--prometheus={target}: {error}") from None


def _print_account(total: Account, money: Money | None) -> None:
    from rich.console import Console

    from tpustack.goodput import causes_table, machines_table, states_table

    terminal = Console()
    for table in (states_table(total, money), causes_table(total), machines_table(total)):
        if table:
            terminal.print(table)
    click.echo(
        f"goodput {total.goodput:.1%}: {total.steps} steps in {total.starts} starts, "
        f"{total.lost_steps} steps were lost" + (f"; {money}" if money else "")
    )


_PORT = click.IntRange(0, 65535)


@click.command("dashboard")
@click.option(
    *("--stack", "-s", "stacks"),
    multiple=True,
    shell_complete=console.stacks,
    help="Show this stack; may be given several times. Without it and --bucket: all stacks.",
)
@click.option(
    *("--bucket", "buckets"),
    metavar="gs://BUCKET",
    multiple=True,
    help="Show what is in this bucket, which is enough to read; may be given several times.",
)
@click.option("--port", type=_PORT, help="Serve on this port, not on any that is free.")
@click.option(
    "--export",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="FOLDER",
    help="Serve nothing: write the page as it is now, for reading alone, to this folder.",
)
def dashboard_command(
    stacks: tuple[str, ...], buckets: tuple[str, ...], port: int | None, export: Path | None
) -> None:
    """Show stacks, TPUs, jobs, goodput, cost and learning curves on one page, live.

    The page is served on this machine alone, at an address that only who sees this output knows.
    It ends with Ctrl-C, and keeps nothing.
    """
    if export is not None and port is not None:
        raise UsageError("--export serves nothing, so it excludes --port")
    from tpustack.dashboard.sources import places

    found = places(stacks, buckets)
    if export is not None:
        from tpustack.dashboard.server import export as write

        click.echo(
            f"{write(found, export)} written. A browser shows it only from a web server: "
            f"python3 -m http.server --bind 127.0.0.1 --directory {export}"
        )
        return
    from tpustack.dashboard.server import serve

    serve(found, port or 0, lambda url: click.echo(f"{url}\nCtrl-C ends it."))
