"""`tpustack job`: submit programs to a stack's queue, and look after them."""

from __future__ import annotations

import codecs
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from tpustack import console
from tpustack.console import LazyGroup
from tpustack.jobs import arguments, artifacts, table, waiting
from tpustack.jobs.place import explained, open_queue, why_without_tpu
from tpustack.jobs.stop import stop as stop_job
from tpustack.jobs.submit import again
from tpustack.jobs.vertex.options import IMAGE
from tpustack.jobs.vertex.place import place_again
from tpustack.jobs.vertex.submit import hand_over


@click.group(
    "job",
    cls=LazyGroup,
    later={
        "submit": "tpustack.jobs.submit_command:command",
        "sweep": "tpustack.jobs.sweep.command:sweep",
        "trials": "tpustack.jobs.sweep.command:trials",
    },
)
def command() -> None:
    """Submit any program to a stack's queue, and look after it.

    Everything lies in the stack's bucket: this computer may be turned off, and the VM may go.
    """


@command.command("list")
@arguments.place
@click.option("--all", "everything", is_flag=True, help="With those that ended a day ago or more.")
@console.as_json("jobs")
def list_jobs(stack: str | None, bucket: str | None, everything: bool, as_json: bool) -> None:
    """List the jobs: the one that runs, those that wait in their order, those that have ended."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        shown = table.rows(queue.summaries())
    since = 0.0 if everything else time.time() - 86400
    shown = [row for row in shown if (row.get("ended") or since) >= since]
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    elif shown:
        from rich.console import Console

        Console().print(table.table(shown))
    else:
        click.echo(f"no jobs in gs://{queue.store.bucket}")


@command.command("show")
@arguments.job
@arguments.place
@console.as_json("job")
def show(job: str, stack: str | None, bucket: str | None, as_json: bool) -> None:
    """Show what a job is and what has become of it."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        found = waiting.read(queue, job)
    if as_json:
        click.echo(json.dumps(table.document(found, queue.store.bucket), indent=2))
    else:
        click.echo("\n".join(table.lines(found, queue.store.bucket)))


@command.command("logs")
@arguments.job
@arguments.place
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends, with its exit code.")
@console.as_json("lines, an object each,")
def logs(job: str, stack: str | None, bucket: str | None, follow: bool, as_json: bool) -> None:
    """Print what a job has written, over all of its tries: to a pipe or file as it is."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        waiting.read(queue, job)
        pieces = waiting.follow(queue, job) if follow else waiting.log(queue, job)
        for text in _as_lines(pieces) if as_json else _shown(pieces):
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        if follow:
            sys.exit(waiting.read(queue, job).code)


@command.command("stop")
@arguments.job
@arguments.place
@console.as_json("job")
def stop(job: str, stack: str | None, bucket: str | None, as_json: bool) -> None:
    """End a job: SIGTERM, and ten seconds later SIGKILL. One that waits never runs."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        found = stop_job(queue, job)
    state = found.state if found.is_over else "stopping"
    click.echo(json.dumps({"name": job, "state": state}) if as_json else f"{job} is {state}")


@command.command("wait")
@arguments.job
@arguments.place
@click.option("--timeout", type=arguments.Span(), help="Wait no longer than this, such as 2h.")
@console.as_json("job")
def wait(
    job: str, stack: str | None, bucket: str | None, timeout: float | None, as_json: bool
) -> None:
    """Wait until a job has ended, and end with its exit code (143: stopped, 124: timed out)."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        found = waiting.wait(queue, job, timeout)
    if as_json:
        click.echo(json.dumps(table.document(found, queue.store.bucket), indent=2))
    else:
        click.echo(table.lines(found, queue.store.bucket)[0])
    sys.exit(found.code)


@command.command("artifacts")
@arguments.job
@arguments.place
@click.option("--output", type=click.Path(path_type=Path), help="Download them to this folder.")
@console.as_json("list")
def list_artifacts(
    job: str, stack: str | None, bucket: str | None, output: Path | None, as_json: bool
) -> None:
    """List the files that a job has left: in $ARTIFACTS_DIR, $MODEL_DIR and $JOB_DIR."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        waiting.read(queue, job)
        found = artifacts.of_job(queue, job)
        if output is not None:
            artifacts.download(queue, found, output)
    if as_json:
        click.echo(json.dumps([vars(one) for one in found], indent=2))
    for one in () if as_json else found:
        click.echo(f"{one.bytes:>12}  {console.line(one.url)}")


@command.command("resubmit")
@arguments.job
@arguments.place
@click.option("--name", help="The new job's name; by default the old one with a number.")
@IMAGE
@console.as_json("job")
def resubmit(
    job: str,
    stack: str | None,
    bucket: str | None,
    name: str | None,
    image: str | None,
    as_json: bool,
) -> None:
    """Run a job once more, with the same files and options.

    What Vertex AI runs needs --stack: its settings say as whom and where, not the job's record.
    """
    queue = open_queue(stack, bucket)
    with explained(queue):
        old = waiting.read(queue, job)
        open_queue(stack, bucket, submits=True, managed=bool(old.spec.vertex))
        place = place_again(stack, image, old.spec)
        if not old.spec.vertex and (why := why_without_tpu(stack, old.spec.framework)):
            click.echo(f"warning: {why}", err=True)
        new = hand_over(queue, again(queue, old, place, name), place)
    click.echo(json.dumps({"name": new.name, "state": new.state}) if as_json else new.name)


def _shown(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a log as it is, but for a terminal without what would control it."""
    if not sys.stdout.isatty():
        yield from pieces
        return
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        yield console.plain(decoder.decode(piece)).encode()


def _as_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a JSON object for each line; bytes that are no text become escapes."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield _as_line(line)
    if rest:
        yield _as_line(rest)


def _as_line(line: bytes) -> bytes:
    return json.dumps({"line": line.decode(errors="backslashreplace")}).encode() + b"\n"
