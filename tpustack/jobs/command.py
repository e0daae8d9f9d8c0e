"""`tpustack job`: submit programs to a stack's queue, and look after them."""

from __future__ import annotations

import codecs
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from tpustack import console
from tpustack.console import LazyGroup
from tpustack.jobs import job as jobs
from tpustack.jobs import submission, vertex
from tpustack.jobs.queue import explained, open_queue, why_waiting, why_without_tpu
from tpustack.jobs.spec import IMAGE, JobOptions, Span, job_argument, job_options, queue_options


@click.group(
    "job",
    cls=LazyGroup,
    later={
        "sweep": "tpustack.jobs.sweep_command:sweep",
        "trials": "tpustack.jobs.sweep_command:trials",
    },
)
def command() -> None:
    """Submit any program to a stack's queue, and look after it.

    The stack's bucket has everything: this computer may be turned off, and the VM may be lost.
    """


@command.command("submit")
@queue_options
@job_options
@click.option("--name", help="The job's name; by default one from its content.")
@click.option(
    "--idle-stop",
    type=click.IntRange(1, 10080),
    metavar="MINUTES",
    help="Delete the TPU once nothing has run for so long.",
)
@click.option("--create", is_flag=True, help="Run `pulumi up` first if the stack is down.")
@console.as_json("job")
def submit(
    stack: str | None,
    bucket: str | None,
    name: str | None,
    idle_stop: int | None,
    create: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Put a job into the queue of a stack, and print its name.

    The machine runs it as soon as the TPU is free; this computer may be turned off by then.
    With --on vertex, Vertex AI runs it on a TPU of its own.
    """
    asked = JobOptions(**given)
    managed = asked.on_vertex
    queue = open_queue(stack, bucket, submits=True, managed=managed)
    place = vertex.place_of(stack, asked)
    on_demand = submission.OnDemand(stack, idle_stop, create=create, managed=managed)
    without_tpu = None if managed else why_without_tpu(stack, asked.framework)
    with asked.checked(name) as (checked, source), explained(queue):
        spec = dataclasses.replace(checked, vertex=place)
        on_demand.prepare(queue, _warn)
        job = submission.submit(queue, spec, name, source.archive)
        if place:
            job = vertex.start(queue, job, place)
        warnings = [] if managed else [on_demand.finish(queue), without_tpu]
        # A new machine takes a while until it looks.
        warnings += [] if managed or create else [why_waiting(queue)]
    for warning in filter(None, warnings):
        _warn(f"warning: {warning}")
    click.echo(json.dumps({"name": job.name, "state": job.state}) if as_json else job.name)


def _warn(line: str) -> None:
    click.echo(line, err=True)


@command.command("list")
@queue_options
@click.option("--all", "everything", is_flag=True, help="With those that ended a day ago or more.")
@console.as_json("jobs")
def list_jobs(stack: str | None, bucket: str | None, everything: bool, as_json: bool) -> None:
    """List the jobs: the one that runs, those that wait in their order, those that have ended."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        shown = jobs.job_rows(queue.summaries())
    since = 0.0 if everything else time.time() - 86400
    shown = [row for row in shown if (row.get("ended") or since) >= since]
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    elif shown:
        from rich.console import Console

        Console().print(jobs.jobs_table(shown))
    else:
        click.echo(f"no jobs in gs://{queue.store.bucket}")


@command.command("show")
@job_argument
@queue_options
@console.as_json("job")
def show(job: str, stack: str | None, bucket: str | None, as_json: bool) -> None:
    """Show what a job is and what has become of it."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        found = jobs.read_job(queue, job)
    if as_json:
        click.echo(json.dumps(jobs.job_document(found, queue.store.bucket), indent=2))
    else:
        click.echo("\n".join(jobs.job_lines(found, queue.store.bucket)))


@command.command("logs")
@job_argument
@queue_options
@click.option("--follow", "-f", is_flag=True, help="Follow until the job ends; exit with its code.")
@console.as_json("lines, an object each,")
def logs(job: str, stack: str | None, bucket: str | None, follow: bool, as_json: bool) -> None:
    """Print what a job has written, over all of its tries: to a pipe or file as it is."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        jobs.read_job(queue, job)
        pieces = jobs.follow_log(queue, job) if follow else jobs.job_log(queue, job)
        for text in _as_lines(pieces) if as_json else _shown(pieces):
            sys.stdout.buffer.write(text)
            sys.stdout.buffer.flush()
        if follow:
            sys.exit(jobs.read_job(queue, job).code)


@command.command("stop")
@job_argument
@queue_options
@console.as_json("job")
def stop(job: str, stack: str | None, bucket: str | None, as_json: bool) -> None:
    """End a job: SIGTERM, and ten seconds later SIGKILL. One that waits never runs."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        found = jobs.stop_job(queue, job)
    state = found.state if found.is_over else "stopping"
    click.echo(json.dumps({"name": job, "state": state}) if as_json else f"{job} is {state}")


@command.command("wait")
@job_argument
@queue_options
@click.option("--timeout", type=Span(), help="Wait no longer than this, such as 2h.")
@console.as_json("job")
def wait(
    job: str, stack: str | None, bucket: str | None, timeout: float | None, as_json: bool
) -> None:
    """Wait until a job has ended, and end with its exit code (143: stopped, 124: timed out)."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        found = jobs.wait_for(queue, job, timeout)
    if as_json:
        click.echo(json.dumps(jobs.job_document(found, queue.store.bucket), indent=2))
    else:
        click.echo(jobs.job_lines(found, queue.store.bucket)[0])
    sys.exit(found.code)


@command.command("artifacts")
@job_argument
@queue_options
@click.option("--output", type=click.Path(path_type=Path), help="Download them to this folder.")
@console.as_json("list")
def list_artifacts(
    job: str, stack: str | None, bucket: str | None, output: Path | None, as_json: bool
) -> None:
    """List the files that a job has left: in $ARTIFACTS_DIR, $MODEL_DIR and $JOB_DIR."""
    queue = open_queue(stack, bucket)
    with explained(queue):
        jobs.read_job(queue, job)
        found = jobs.artifacts_of(queue, job)
        if output is not None:
            jobs.download(queue, found, output)
    if as_json:
        click.echo(json.dumps([vars(one) for one in found], indent=2))
    for one in () if as_json else found:
        click.echo(f"{one.bytes:>12}  {console.line(one.url)}")


@command.command("resubmit")
@job_argument
@queue_options
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
        old = jobs.read_job(queue, job)
        open_queue(stack, bucket, submits=True, managed=bool(old.spec.vertex))
        place = vertex.place_again(stack, image, old.spec)
        if not old.spec.vertex and (why := why_without_tpu(stack, old.spec.framework)):
            click.echo(f"warning: {why}", err=True)
        new = jobs.resubmit_job(queue, old, place, name)
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
