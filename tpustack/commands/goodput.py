"""`tpustack goodput`: where the wall time of a stack's job went."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpustack import options
from tpustack.errors import TpustackError, UsageError

if TYPE_CHECKING:
    from tpu_agent.jobs.queue import Try
    from tpu_training.goodput.account import Account
    from tpu_training.goodput.ledger import Ledger
    from tpustack.goodput.money import Money


@click.command("goodput")
@click.argument("what", metavar="[JOB | MODEL_DIR]", required=False)
@options.stack("The stack whose job to look at; without it the one Pulumi selected.")
@options.as_json("account")
@click.option("--plot", metavar="FILE", help="Also draw the timeline: NAME.png or NAME.svg.")
@click.option(
    "--prometheus",
    metavar="FILE",
    help="Also write metrics for Prometheus, such as for node exporter's textfile collector; - "
    "prints them and nothing else.",
)
def command(
    what: str | None,
    stack: str | None,
    as_json: bool,
    plot: str | None,
    prometheus: str | None,
) -> None:
    """Show what a job's wall time went into, over all of its starts, machines and TPUs.

    Goodput is the part in steps that count; the rest is told by its cause. With --stack, JOB is one
    of its queue, and without JOB its training is looked at; what the time has cost is told, too.
    MODEL_DIR is any training's directory, here or gs://…
    """
    _refuse(as_json, plot, prometheus)
    from tpu_training.goodput.account import account
    from tpu_training.goodput.ledger import ended_by, read
    from tpustack.goodput.files import files_of

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
        click.echo(json.dumps(document, indent=2))
    elif prometheus != "-":
        _print(total, money)
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
    from tpustack.engine.deployed import outputs_of

    return str(outputs_of(stack)["job_url"])


def _job_of_queue(stack: str, name: str) -> tuple[str, Sequence[Try]]:
    """Return the model directory of a job in a stack's queue, and its tries."""
    from tpu_core import paths
    from tpustack.jobs.place import explained, open_queue
    from tpustack.jobs.waiting import read

    queue = open_queue(stack, None)
    with explained(queue):
        job = read(queue, name, ask=False)
    return f"gs://{queue.store.bucket}/{paths.folder(name)}model", job.tries


def _money(stack: str | None, total: Account) -> Money:
    from infra.catalog import Catalog
    from infra.cost.parts import of_stack
    from tpustack.engine.deployed import name_of
    from tpustack.goodput.money import money_of
    from tpustack.stacks.files import load

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
    from tpu_training.goodput.prometheus import to_prometheus

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


def _print(total: Account, money: Money | None) -> None:
    from rich.console import Console

    from tpustack.goodput.show import causes_table, machines_table, states_table

    console = Console()
    for table in (states_table(total, money), causes_table(total), machines_table(total)):
        if table:
            console.print(table)
    click.echo(
        f"goodput {total.goodput:.1%}: {total.steps} steps in {total.starts} starts, "
        f"{total.lost_steps} steps were lost" + (f"; {money}" if money else "")
    )
