"""`tpustack job`: submit programs to a stack's queue, and look after them.

Completion in shells loads this module at each press of a key, so tables, settings and the engine
are imported by the functions that need them.
"""

import codecs
import dataclasses
import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from tpu_agent.jobs.queue import Job, Queue
from tpu_core import paths, records
from tpustack import console
from tpustack.errors import UsageError
from tpustack.jobs import job as jobs
from tpustack.jobs import spec as options
from tpustack.jobs import vertex
from tpustack.jobs.queue import (
    bring_up,
    explained,
    open_queue,
    require_on_demand,
    why_waiting,
    why_without_tpu,
)

# Jobs that ended longer ago, in seconds, are listed only by --all.
_RECENT = 86400


@click.group(
    "job",
    cls=console.LazyGroup,
    later={
        "sweep": "tpustack.jobs.sweep_command:sweep_command",
        "trials": "tpustack.jobs.sweep_command:trials_command",
    },
)
def command() -> None:
    """Submit any program to a stack's queue, and look after it.

    The stack's bucket has everything: this computer may be turned off, and the VM may be lost.
    """


@command.command("submit")
@options.queue_options
@options.job_options
@options.vertex_options
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
    asked = options.JobOptions(**given)
    managed = asked.on_vertex
    queue = open_queue(stack, bucket, submits=True, managed=managed)
    place = vertex.place_of(stack, asked)
    on_demand = None
    if create or idle_stop is not None:
        on_demand = require_on_demand(stack, idle_stop, managed=managed)
    without_tpu = None if managed else why_without_tpu(stack, asked.framework)
    # All of the input is checked before a stack is brought up, which costs minutes and money.
    spec, source = asked.checked(name)
    with explained(queue):
        if create and on_demand:
            bring_up(queue, *on_demand, _warn)
        job = jobs.submit(queue, dataclasses.replace(spec, vertex=place), name, source.archive)
        if place:
            job = vertex.start(queue, job, place)
        # A new machine takes a while until it looks.
        warnings = [] if managed else [without_tpu, None if create else why_waiting(queue)]
        if idle_stop is not None:
            queue.store.write(paths.IDLE_STOP, records.dump({"minutes": idle_stop}))
        elif on_demand and not on_demand[1].limits.any:
            warnings.append(
                f"nothing takes the TPU of the stack {stack} down after the job: give "
                "--idle-stop MINUTES, or set limits.idleMinutes"
            )
    for warning in filter(None, warnings):
        _warn(f"warning: {warning}")
    _print_state(job, job.state, job.name, as_json=as_json)


def _warn(line: str) -> None:
    # Standard output has the job's name alone, for scripts.
    click.echo(line, err=True)


def _print_state(job: Job, state: str, text: str, *, as_json: bool) -> None:
    click.echo(json.dumps({"name": job.name, "state": state}) if as_json else text)


def _print_job(job: Job, queue: Queue, lines: int | None, *, as_json: bool) -> None:
    """Print a job: all of it for programs, the first of its lines (None: all) for people."""
    if as_json:
        click.echo(json.dumps(jobs.job_document(job, queue.store.bucket), indent=2))
    else:
        click.echo("\n".join(jobs.job_lines(job, queue.store.bucket)[:lines]))


@command.command("list")
@options.on_queue
@click.option("--all", "everything", is_flag=True, help="With those that ended a day ago or more.")
@console.as_json("jobs")
def list_jobs(queue: Queue, everything: bool, as_json: bool) -> None:
    """List the jobs: the one that runs, those that wait in their order, those that have ended."""
    # The list costs one call for a thousand jobs: what it shows is in the objects' metadata.
    since = 0.0 if everything else time.time() - _RECENT
    found = jobs.job_rows(queue.summaries())
    shown = [row for row in found if (row.get("ended") or since) >= since]
    if as_json:
        click.echo(json.dumps(shown, indent=2))
    elif shown:
        from rich.console import Console

        Console().print(jobs.jobs_table(shown))
    else:
        click.echo(f"no jobs in gs://{queue.store.bucket}")


@command.command("show")
@options.job_argument
@options.on_queue
@console.as_json("job")
def show(queue: Queue, job: str, as_json: bool) -> None:
    """Show what a job is and what has become of it."""
    _print_job(jobs.read_job(queue, job), queue, None, as_json=as_json)


@command.command("logs")
@options.job_argument
@options.on_queue
@click.option("--follow", "-f", is_flag=True, help="Follow until the job ends; exit with its code.")
@console.as_json("lines, an object each,")
def logs(queue: Queue, job: str, follow: bool, as_json: bool) -> None:
    """Print what a job has written, over all of its tries: to a pipe or file as it is."""
    jobs.read_job(queue, job)
    pieces = jobs.follow_log(queue, job) if follow else jobs.job_log(queue, job)
    # Bytes, since a program may write any: text would lose some of them in a pipe.
    for text in _as_lines(pieces) if as_json else _shown(pieces):
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
    if follow:  # For scripts, as if the job had run here.
        sys.exit(jobs.read_job(queue, job).code)


@command.command("stop")
@options.job_argument
@options.on_queue
@console.as_json("job")
def stop(queue: Queue, job: str, as_json: bool) -> None:
    """End a job: SIGTERM, and ten seconds later SIGKILL. One that waits never runs."""
    # The runner hears of it within a second by the bell, and ends the processes then.
    found = jobs.stop_job(queue, job)
    state = found.state if found.is_over else "stopping"
    _print_state(found, state, f"{job} is {state}", as_json=as_json)


@command.command("wait")
@options.job_argument
@options.on_queue
@options.span_option("--timeout", "Wait no longer than this, such as 2h.")
@console.as_json("job")
def wait(queue: Queue, job: str, timeout: float | None, as_json: bool) -> None:
    """Wait until a job has ended, and end with its exit code (143: stopped, 124: timed out)."""
    found = jobs.wait_for(queue, job, timeout)
    _print_job(found, queue, 1, as_json=as_json)
    sys.exit(found.code)


@command.command("artifacts")
@options.job_argument
@options.on_queue
@click.option("--output", type=click.Path(path_type=Path), help="Download them to this folder.")
@console.as_json("list")
def list_artifacts(queue: Queue, job: str, output: Path | None, as_json: bool) -> None:
    """List the files that a job has left: in $ARTIFACTS_DIR, $MODEL_DIR and $JOB_DIR."""
    # A job without files and a name without a job would look the same.
    jobs.read_job(queue, job)
    found = jobs.artifacts_of(queue, job)
    if output is not None:
        jobs.download(queue, found, output)
    if as_json:
        click.echo(json.dumps([vars(one) for one in found], indent=2))
    for one in () if as_json else found:
        click.echo(f"{one.bytes:>12}  {console.line(one.url)}")


@command.command("resubmit")
@options.job_argument
@options.queue_options
@click.option("--name", help="The new job's name; by default the old one with a number.")
@options.IMAGE
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
    for problem in options.name_problems(name):
        raise UsageError(problem)
    queue = open_queue(stack, bucket)
    with explained(queue):
        old = jobs.read_job(queue, job)
        # Asked once more, since only the record says what the stack must be able to run.
        open_queue(stack, bucket, submits=True, managed=bool(old.spec.vertex))
        place = vertex.place_again(stack, image, old.spec)
        if not old.spec.vertex and (why := why_without_tpu(stack, old.spec.framework)):
            _warn(f"warning: {why}")
        new = jobs.resubmit_job(queue, old, place, name)
    _print_state(new, new.state, new.name, as_json=as_json)


def _shown(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a log as it is, but for a terminal without what would control it."""
    if not sys.stdout.isatty():
        yield from pieces
        return
    # A character may be in two pieces.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in pieces:
        yield console.plain(decoder.decode(piece)).encode()


def _as_lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a JSON object for each line; bytes that are not UTF-8 become escapes."""
    rest = b""
    for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        yield from map(_as_line, whole)
    if rest:
        yield _as_line(rest)


def _as_line(line: bytes) -> bytes:
    return json.dumps({"line": line.decode(errors="backslashreplace")}).encode() + b"\n"
