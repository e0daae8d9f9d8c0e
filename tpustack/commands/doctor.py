"""`tpustack doctor`: explains the errors in a log."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import BinaryIO

import click

from tpustack import console
from tpustack.errors import UsageError
from tpustack.logs.diagnosis import Diagnosis, Finding, Unknown, diagnose
from tpustack.reference.errors import markdown

_MOST_LINES = 5
# The known error of a step that does not fit (known_errors.json).
_MEMORY = "device-memory"
_MOST_UNKNOWN = 20
_ENDED = "training failed: "
"""What the trainer says last: it comes first here."""


@click.command("doctor")
@click.argument("file", type=click.File("rb"), required=False)
@console.stack("The stack to look into; without it the one Pulumi selected.")
@console.as_json()
@click.option("--markdown", "as_page", is_flag=True, help="Print the page docs/troubleshooting.md.")
def command(file: BinaryIO | None, stack: str | None, as_json: bool, as_page: bool) -> None:
    """Find the known errors in a log (`-`: standard input); say their causes and cures.

    Without FILE: look into a stack's own logs and states, through Google's APIs.

    Exit code 0: nothing found, 1: errors found, 2: wrong input.
    """
    if as_page:
        if file is not None or stack is not None or as_json:
            raise UsageError("--markdown stands alone")
        click.echo(markdown(), nl=False)
        return
    if file is not None and stack is not None:
        raise UsageError("--stack and FILE exclude each other")
    texts = _of_stack(stack) if file is None else iter([(file.name, _read(file))])
    diagnoses = [diagnose(source, text) for source, text in texts]
    short = file is None and any(found.known.id == _MEMORY for found in _findings(diagnoses))
    fits = _what_fits(stack) if short else None
    if as_json:
        document = {**_document(diagnoses), "fits": fits}
        click.echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print(diagnoses, fits)
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
    from tpustack.engine.deployed import outputs_of
    from tpustack.logs import stack as stack_logs

    outputs = outputs_of(stack)
    return stack_logs.texts(Google(), outputs)


def _what_fits(stack: str | None) -> str:
    """Return the largest batch that fits the stack's TPU, or how to find it out."""
    from tpu_training.compile import largest_batch
    from tpustack.engine.deployed import name_of
    from tpustack.project import root
    from tpustack.stacks import files as stacks
    from tpustack.stacks.compiled import answer_of, asking, manifest_of

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


def _print(diagnoses: list[Diagnosis], fits: str | None) -> None:
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
