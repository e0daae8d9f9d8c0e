"""`tpustack goodput`: where the wall time of a stack's job went."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tpustack import options
from tpustack.errors import TpustackError, UsageError

if TYPE_CHECKING:
    from tpu_training.goodput.account import Account

_OBJECTS = "https://storage.googleapis.com/storage/v1/b/{}/o"


@click.command("goodput")
@click.argument("model_dir", required=False)
@options.stack("The stack whose job to look at; without it the one Pulumi selected.")
@options.as_json("account")
def command(model_dir: str | None, stack: str | None, as_json: bool) -> None:
    """Show what a job's wall time went into, over all of its starts and machines.

    Goodput is the part in steps that count. MODEL_DIR is a training's directory, here or gs://…;
    without it the stack's job is looked at.
    """
    if model_dir is not None and stack is not None:
        raise UsageError("--stack and MODEL_DIR exclude each other")
    from tpu_training.goodput.account import account
    from tpu_training.goodput.entry import parse

    where = model_dir or _job_of(stack)
    found = {name: parse(text) for name, text in _entries(where.rstrip("/"))}
    entries = [entry for entry in found.values() if entry is not None]
    if not entries:
        raise TpustackError(f"{where}: no training has written a ledger there")
    total, broken = account(entries), sorted(name for name, entry in found.items() if not entry)
    if as_json:
        click.echo(json.dumps(_document(total, broken), indent=2))
        return
    _print(total)
    for name in broken:
        click.echo(f"{name} is no entry of a ledger; it is left out", err=True)


def _job_of(stack: str | None) -> str:
    from tpustack.engine.deployed import outputs_of

    return str(outputs_of(stack)["job_url"])


def _entries(where: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file of the ledger."""
    from tpu_training.goodput.entry import FOLDER

    if not where.startswith("gs://"):
        for path in sorted(Path(where, FOLDER).glob("*.json")):
            yield str(path), path.read_text(encoding="utf-8", errors="replace")
        return
    from urllib.parse import quote

    from tpustack.cloud.google import Google

    google = Google()
    bucket, _, folder = where.removeprefix("gs://").partition("/")
    objects = _OBJECTS.format(bucket)
    for item in google.pages(objects, "items", {"prefix": f"{folder}/{FOLDER}/"}):
        name = quote(item["name"], safe="")
        yield f"gs://{bucket}/{item['name']}", google.text(f"{objects}/{name}", {"alt": "media"})


def _document(total: Account, broken: list[str]) -> dict[str, object]:
    return {
        "wall_seconds": total.wall,
        "goodput": total.goodput,
        "seconds": total.seconds,
        "starts": total.starts,
        "steps": total.steps,
        "lost_steps": total.lost_steps,
        "not_read": broken,
    }


def _print(total: Account) -> None:
    from rich.console import Console
    from rich.table import Table

    from tpu_training.goodput.account import STATES

    table = Table("state", "hours", "part", "what it is")
    for name, meaning in STATES:
        seconds = total.seconds[name]
        part = seconds / total.wall if total.wall else 0.0
        table.add_row(name, f"{seconds / 3600:.2f}", f"{part:.1%}", meaning)
    table.add_row("", f"{total.wall / 3600:.2f}", "100.0%", "wall time")
    Console().print(table)
    click.echo(
        f"goodput {total.goodput:.1%}: {total.steps} steps in {total.starts} starts, "
        f"{total.lost_steps} steps were lost"
    )
