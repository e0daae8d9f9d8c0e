"""`tpustack job`: submit and manage jobs in a stack's queue.

Completion in shells loads this module at each press of a key, so tables, settings and the engine
are imported by the functions that need them.
"""

import codecs
import dataclasses
import json
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from tpu_agent.jobs.queue import Job, Queue
from tpu_core import paths, records
from tpustack import console, errors
from tpustack.engine import named
from tpustack.jobs import job as jobs, queue as access, spec as options, sweep as sweeps, vertex
from tpustack.jobs.source import upload

# Jobs that ended longer ago, in seconds, are listed only by --all.
_RECENT = 86400


# Nothing of it is later: the class suggests a name for one that is not there.
@click.group("job", cls=console.LazyGroup, later={})
def command() -> None:
    """Submit and manage jobs in a stack's queue.

    The stack's bucket has everything: this computer may be turned off, and the VM may be lost.
    """


@command.command("submit", short_help="Add a job to a stack's queue.")
@options.queue_options
@options.job_options
@options.vertex_options
@click.option("--name", help="The job's name; by default one from its content.")
@click.option(
    "--idle-stop",
    type=click.IntRange(1, 10080),
    metavar="MINUTES",
    help="Stop or delete the TPU once nothing has run for this long.",
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
    queue = access.open_queue(stack, bucket, submits=True, managed=managed)
    place = vertex.place_of(stack, asked)
    on_demand = None
    if create or idle_stop is not None:
        on_demand = access.require_on_demand(stack, idle_stop, managed=managed)
    access.require_root(stack, None if managed else asked.image)
    without_tpu = None if managed else access.why_without_tpu(stack, asked.framework)
    # All of the input is checked before a stack is brought up, which costs minutes and money.
    spec, source = asked.checked(name)
    with access.explained(queue):
        if create and on_demand:
            access.bring_up(queue, *on_demand, console.say)
        job = jobs.submit(queue, dataclasses.replace(spec, vertex=place), name, source.archive)
        if place:
            job = vertex.start(queue, job, place)
        # A new machine takes a while until it looks.
        warnings = [] if managed else [without_tpu, None if create else access.why_waiting(queue)]
        if idle_stop is not None:
            queue.store.write(paths.IDLE_STOP, records.dump({"minutes": idle_stop}))
        elif on_demand and not on_demand[1].limits.any:
            cure = "use --idle-stop MINUTES, or set limits.idleMinutes"
            if on_demand[1].is_compute:
                cure = "set limits.timeToLiveHours"
            warnings.append(f"nothing deletes the TPU of the stack {stack} after the job: {cure}")
    for warning in filter(None, warnings):
        console.say(f"warning: {warning}")
    _print_state(job, job.state, job.name, as_json=as_json)


def _print_state(job: Job, state: str, text: str, *, as_json: bool) -> None:
    click.echo(json.dumps({"name": job.name, "state": state}) if as_json else text)


def _print_job(job: Job, queue: Queue, lines: int | None, *, as_json: bool) -> None:
    """Print a job: all of it for programs, the first of its lines (None: all) for people."""
    if as_json:
        click.echo(json.dumps(jobs.job_document(job, queue.store.bucket), indent=2))
    else:
        click.echo("\n".join(jobs.job_lines(job, queue.store.bucket)[:lines]))


@command.command("list", short_help="List the jobs of a stack.")
@options.on_queue
@click.option("--all", "everything", is_flag=True, help="Also jobs that ended a day ago or more.")
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
        click.echo("\n".join(jobs.jobs_table(shown, console.columns())))
    else:
        click.echo(f"no jobs in gs://{queue.store.bucket}")


@command.command("show", short_help="Show a job and its state.")
@options.job_argument
@options.on_queue
@console.as_json("job")
def show(queue: Queue, job: str, as_json: bool) -> None:
    """Show a job, its state and its attempts."""
    _print_job(jobs.read_job(queue, job), queue, None, as_json=as_json)


@command.command("logs", short_help="Print a job's output, across restarts.")
@options.job_argument
@options.on_queue
@click.option("--follow", "-f", is_flag=True, help="Follow until the job ends; exit with its code.")
@console.as_json("lines, an object each,")
def logs(queue: Queue, job: str, follow: bool, as_json: bool) -> None:
    """Print the output of all attempts of a job, to a pipe or file unchanged."""
    jobs.read_job(queue, job)
    pieces = jobs.follow_log(queue, job) if follow else jobs.job_log(queue, job)
    # Bytes, since a program may write any: text would lose some of them in a pipe.
    for text in _as_lines(pieces) if as_json else _shown(pieces):
        sys.stdout.buffer.write(text)
        sys.stdout.buffer.flush()
    if follow:  # For scripts, as if the job had run here.
        sys.exit(jobs.read_job(queue, job).code)


@command.command("stop", short_help="Stop a job.")
@options.job_argument
@options.on_queue
@console.as_json("job")
def stop(queue: Queue, job: str, as_json: bool) -> None:
    """End a job: SIGTERM, and ten seconds later SIGKILL. A waiting job never runs."""
    # The runner hears of it within a second by the bell, and ends the processes then.
    found = jobs.stop_job(queue, job)
    state = found.state if found.is_over else "stopping"
    _print_state(found, state, f"{job} is {state}", as_json=as_json)


@command.command("wait", short_help="Wait for a job, and exit with its exit code.")
@options.job_argument
@options.on_queue
@options.span_option("--timeout", "Wait no longer than this, such as 2h.")
@console.as_json("job")
def wait(queue: Queue, job: str, timeout: float | None, as_json: bool) -> None:
    """Wait until a job has ended; exit with its exit code (143: stopped, 124: timed out)."""
    found = jobs.wait_for(queue, job, timeout)
    _print_job(found, queue, 1, as_json=as_json)
    sys.exit(found.code)


@command.command("artifacts", short_help="List or fetch the files that a job left.")
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


@command.command("resubmit", short_help="Run a job again, with the same files and options.")
@options.job_argument
@options.queue_options
@click.option("--name", help="The new job's name; by default the old one with a number.")
@click.option("--image", help="On vertex: the container; by default the framework's.")
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

    A job on Vertex AI needs --stack, because its settings name the account and the region.
    """
    for problem in options.name_problems(name):
        raise errors.UsageError(problem)
    queue = access.open_queue(stack, bucket)
    with access.explained(queue):
        old = jobs.read_job(queue, job)
        # Asked once more, since only the record says what the stack must be able to run.
        access.open_queue(stack, bucket, submits=True, managed=bool(old.spec.vertex))
        place = vertex.place_again(stack, image, old.spec)
        access.require_root(stack, old.spec.image)
        if not old.spec.vertex and (why := access.why_without_tpu(stack, old.spec.framework)):
            console.say(f"warning: {why}")
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


# --- Sweeps: begun or continued, and their trials.

# What the stack's own training is written for, and how the agent's variables become its arguments.
_FRAMEWORK = "tensorflow"
_TRAINER = (
    'python -m tpu_training train-and-evaluate --tpu="$TPU_NAME" --tpu-zone="$TPU_ZONE" '
    '--tpu-project="$TPU_PROJECT" --data="$DATA_DIR" --model-dir="$MODEL_DIR"'
)
_BEST, _COMPLETE, _PRUNED = "#1b7837", "#2166ac", "#b0b0b0"
# The options that are fields of a Sweep under the same names.
_SETTINGS = ("params", "wanted", "parallel", "metric", "goal", "seed")
_BUCKETS = click.option(
    "--bucket", "buckets", multiple=True, help="This bucket's queue: gs://B. May be repeated."
)
_STACKS = console.stack("The queue of this stack.", several=True)


def _drawable(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture that could not be drawn: asked before hours have passed."""
    if path is None:
        return None
    if path.suffix not in (".png", ".svg"):
        raise errors.UsageError(f"--plot: {path} ends with neither .png nor .svg")
    if not path.absolute().parent.is_dir():
        raise errors.UsageError(f"--plot: there is no folder {path.absolute().parent}")
    if find_spec("matplotlib") is None:
        raise errors.UsageError(
            "--plot needs matplotlib, which is not installed: `pip install matplotlib`, or this "
            "package with its extra `sweep`"
        )
    return path


_PLOT = click.option(
    "--plot",
    type=click.Path(path_type=Path),
    callback=_drawable,
    help="Draw the trials into this PNG or SVG.",
)


@command.command("sweep", short_help="Search for the best parameters with many jobs.")
@_STACKS
@_BUCKETS
@click.option(
    "--param", "params", multiple=True, required=True, metavar="NAME=RANGE", help="What to vary."
)
@click.option(
    "--trials", "wanted", type=click.IntRange(1, 1000), default=12, help="How many jobs (12)."
)
@click.option("--parallel", type=click.IntRange(1, 64), default=2, help="At once, per queue (2).")
@click.option("--metric", default="loss", help="The metric of the jobs to optimize.")
@click.option(
    "--goal", type=click.Choice((sweeps.MINIMIZE, sweeps.MAXIMIZE)), default=sweeps.MINIMIZE
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, help="Seed of the search (0).")
@click.option("--name", help="The sweep's name; by default one from its content.")
@_PLOT
@console.as_json("trials")
@options.job_options
def sweep_command(
    stacks: tuple[str, ...],
    buckets: tuple[str, ...],
    plot: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Look for the best parameters: each trial is a job of the queue.

    Without --command, the trials are the training of the stack. Interrupt it at any time: jobs
    keep running, and `job trials --resume` continues. Poor trials end early.
    """
    # Asked first: hours later, at the eleventh trial, would be too late.
    sweeps.require_optuna()
    stacks = _chosen(stacks, buckets)
    queues = _open_queues(stacks, buckets, submits=True)
    if given["command"] is None:
        given |= {"command": command_of(next(iter(stacks), None)), "framework": _FRAMEWORK}
    for one in stacks:
        access.require_root(one, given["image"])
    for why in [access.why_without_tpu(one, given["framework"]) for one in stacks]:
        if why:
            console.say(f"warning: {why}")
    with access.explained(queues[0]):
        record, begun = _begin(queues, given)
        _drive(queues, record, begun, plot, as_json=as_json)


def _chosen(stacks: tuple[str, ...], buckets: tuple[str, ...]) -> tuple[str, ...]:
    """Return the stacks that a person names; without any queue, Pulumi's selected stack."""
    return stacks if stacks or buckets else (named(None),)


def _open_queues(
    stacks: Sequence[str], buckets: Sequence[str], *, submits: bool = False
) -> list[Queue]:
    """Return the queues that a person names."""
    queues = [access.open_queue(stack, None, submits=submits) for stack in stacks]
    return queues + [access.open_queue(None, bucket) for bucket in buckets]


def _drive(
    queues: Sequence[Queue],
    record: sweeps.Record,
    begun: sweeps.Sweep,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run what is left of a sweep, print it, and end the process."""
    for warning in filter(None, map(access.why_waiting, queues)):
        console.say(f"warning: {warning}")
    console.say(
        f"sweep {begun.name}: {begun.wanted} trials. If this ends, `tpustack job trials --resume "
        f"{begun.name}` continues it"
    )
    by_bucket = {queue.store.bucket: queue for queue in queues}
    driver = sweeps.Driver(begun, record, by_bucket, console.say)
    driver.run()
    _print(driver.sweep, plot, as_json=as_json)
    sys.exit(0 if driver.sweep.best else 1)


def _begin(queues: Sequence[Queue], given: dict[str, Any]) -> tuple[sweeps.Record, sweeps.Sweep]:
    """Return a new sweep, whose archive and record are in the bucket.

    Everything that can be wrong is found before the first write: nothing deletes a record.
    """
    settings = {key: given.pop(key) for key in _SETTINGS}
    name, program = given.pop("name"), given["command"]
    space = sweeps.space_of(settings["params"])
    first = {one.name: one.choices[0] if one.choices else one.low for one in space}
    # What is checked is what a trial would run.
    asked = options.JobOptions(**{**given, "command": sweeps.command_with(program, first)})
    spec, source = asked.checked(None)
    # The name is by all that makes the sweep, so the same one is not begun twice by accident.
    all_of_it = dataclasses.replace(spec, command=f"{program} {settings}")
    name = jobs.name_of(all_of_it) if name is None else name
    buckets = tuple(queue.store.bucket for queue in queues)
    spec = dataclasses.replace(spec, command=program)
    made = sweeps.Sweep(name=name, spec=spec, buckets=buckets, **settings)
    record = sweeps.Record(queues[0].store, made.name)
    # Before the record: a command that continues the sweep needs the archive in the buckets.
    for queue in queues:
        if source.archive is not None:
            upload(queue, source.archive)
    record.write(made)
    return record, made


def command_of(stack: str | None) -> str:
    """Return what trains as the stack's settings say. Raises UsageError without a stack."""
    from tpustack.stacks import load

    if stack is None:
        raise errors.UsageError(
            "--command: (not given), and without --stack there is no training to vary. Give one "
            'like --command "python main.py"'
        )
    # Quoted, since bash on the machine splits them again.
    return " ".join([_TRAINER, *map(shlex.quote, load(stack).training.args)])


@command.command("trials", short_help="Show the trials of a sweep, the best first.")
@click.argument("sweep")
@_STACKS
@_BUCKETS
@click.option("--resume", is_flag=True, help="First run what is left of it, wherever it began.")
@_PLOT
@console.as_json("trials")
def trials_command(
    sweep: str,
    stacks: tuple[str, ...],
    buckets: tuple[str, ...],
    resume: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Show the trials of a sweep, as far as it has come; the first queue has its record."""
    queues = _open_queues(_chosen(stacks, buckets), buckets)
    with access.explained(queues[0]):
        record = sweeps.Record(queues[0].store, sweep)
        found = record.read()
        if resume:
            sweeps.require_optuna()
            # Others may write the record: by its word alone, jobs would go to any bucket.
            if {queue.store.bucket for queue in queues} != set(found.buckets):
                raise errors.UsageError(
                    "--resume: name the stacks or buckets of "
                    f"{', '.join(f'gs://{one}' for one in found.buckets)} again, if you began the "
                    f"sweep {sweep} with these: its record says so"
                )
            _drive(queues, record, found, plot, as_json=as_json)
        _print(found, plot, as_json=as_json)


def _print(sweep: sweeps.Sweep, plot: Path | None, *, as_json: bool) -> None:
    """Print the trials, the best first, then those that have no value; draw them."""
    if as_json:
        document = {**dataclasses.asdict(sweep), "best": sweep.best and sweep.best.number}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo("\n".join(_table(sweep)))
    if plot is not None:  # After the table: a full disk should not hide what hours have found.
        _draw(sweep, plot)


def _table(sweep: sweeps.Sweep) -> list[str]:
    from tpu_infra.cost import aligned

    names = [one.name for one in sweeps.space_of(sweep.params)]
    rows = [("trial", "state", console.line(sweep.metric), *names, "job", "steps")]
    for one in sorted(sweep.trials, key=sweep.rank):
        best = " *" if one == sweep.best else ""
        value = "" if one.value is None else f"{one.value:.6g}"
        steps = str(one.reports[-1][0]) if one.reports else ""
        params = (str(one.params[name]) for name in names)
        cells = (f"{one.number}{best}", one.state, value, *params, one.job, steps)
        rows.append(tuple(map(console.line, cells)))
    return aligned(rows, len(rows[0]), console.columns(), ("steps", "job"))


def _draw(sweep: sweeps.Sweep, path: Path) -> None:
    """Draw the metric by each parameter, the best trial in green. Raises TpustackError."""
    from matplotlib.figure import Figure

    space = sweeps.space_of(sweep.params)
    ended = [one for one in sweep.trials if one.value is not None]
    colours = [_COMPLETE if one.state == sweeps.COMPLETE else _PRUNED for one in ended]
    if sweep.best:
        colours[ended.index(sweep.best)] = _BEST
    try:
        figure = Figure(figsize=(3.4 * len(space), 3.2), layout="constrained")
        for axes, each in zip(figure.subplots(1, len(space), squeeze=False)[0], space, strict=True):
            places = [one.params[each.name] for one in ended]
            axes.scatter(places, [one.value for one in ended], c=colours, s=22)
            axes.set(xlabel=each.name, xscale="log" if each.is_log else "linear")
            # It is any text, also one with the signs of a formula.
            axes.set_ylabel(console.line(sweep.metric), parse_math=False)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        # ValueError: a choice that looks like a formula, and isn't one.
        raise errors.TpustackError(f"--plot: {path} can't be written: {error}") from None
