"""`tpustack job sweep` and `job trials`: begin a sweep or continue one, and show its trials."""

import io
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpu_agent.jobs.queue import Queue
from tpustack import console
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import sweep as sweeps
from tpustack.jobs.job import name_of
from tpustack.jobs.queue import explained, open_queue, why_waiting, why_without_tpu
from tpustack.jobs.source import upload
from tpustack.jobs.spec import JobOptions, job_options, on_queue
from tpustack.jobs.vertex import place_again, place_of

# What the stack's own training is written for, and how the agent's variables become its arguments.
_FRAMEWORK = "tensorflow"
_TRAINER = (
    'python -m tpu_training train-and-evaluate --tpu="$TPU_NAME" --tpu-zone="$TPU_ZONE" '
    '--tpu-project="$TPU_PROJECT" --data="$DATA_DIR" --model-dir="$MODEL_DIR"'
)
# The options that are fields of a Sweep under the same names.
_SETTINGS = ("params", "wanted", "parallel", "metric", "goal", "pruner", "seed")
_WITH_RESUME = {"--resume", "--stack", "--bucket", "--image", "--plot", "--json"}
_GOALS = (sweeps.MINIMIZE, sweeps.MAXIMIZE)
_COLOURS = {
    sweeps.COMPLETE: "#2166ac",
    sweeps.PRUNED: "#b0b0b0",
    sweeps.OPEN: "#f4a582",
    sweeps.FAILED: "#b2182b",
}
_BEST = "#1b7837"
# Texts stay texts, and the same trials give the same file: no random names, version or time.
_STYLE: Any = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "sweep"}
_METADATA: dict[str, Any] = {
    ".png": {"Software": None},
    ".svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
}
# Inches of one of the panels, which stand side by side.
_PANEL, _HEIGHT = 3.4, 3.2


def _drawable(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture that could not be drawn: asked before hours have passed."""
    if path is None:
        return None
    if path.suffix not in _METADATA:
        raise UsageError(f"--plot: {path} ends with neither .png nor .svg")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no folder {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError(
            "--plot needs matplotlib, which is not installed: `pip install matplotlib`, or this "
            "package with its extra `sweep`"
        ) from None
    return path


_PLOT = click.option(
    "--plot",
    type=click.Path(path_type=Path),
    callback=_drawable,
    help="Draw the trials into this PNG or SVG.",
)


@click.command("sweep")
@click.option("--stack", "-s", "stacks", multiple=True, shell_complete=console.stacks)
@click.option("--bucket", "buckets", multiple=True, help="The queue of this bucket: gs://BUCKET.")
@click.option("--param", "params", multiple=True, metavar="NAME=RANGE", help="What varies.")
@click.option(
    "--trials", "wanted", type=click.IntRange(1, 1000), default=12, help="How many jobs (12)."
)
@click.option("--parallel", type=click.IntRange(1, 64), default=2, help="At a time a queue (2).")
@click.option("--metric", default="loss", help="The figure of the jobs that counts.")
@click.option("--goal", type=click.Choice(_GOALS), default=sweeps.MINIMIZE)
@click.option(
    "--pruner",
    type=click.Choice(sweeps.PRUNERS),
    default="median",
    help="Which trials end early.",
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, help="Of the search (0).")
@click.option(
    "--resume", metavar="NAME", help="Continue this sweep, where it runs; takes no other options."
)
@click.option("--name", help="The sweep's name; by default one from its content.")
@_PLOT
@console.as_json("trials")
@job_options
def sweep(
    stacks: tuple[str, ...],
    buckets: tuple[str, ...],
    resume: str | None,
    plot: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Look for the best parameters: each trial is a job of the queue.

    Without --command, the trials are the training of the stack. Interrupt it at any time: jobs
    keep running, and --resume continues. Poor trials end early. With --on vertex, Vertex AI runs
    each on a TPU of its own.
    """
    # Asked first: hours later, at the eleventh trial, would be too late.
    sweeps.require_optuna()
    managed = given["on"] == "vertex"
    # A continued sweep may have only results left to read, for which no stack must run jobs.
    submits = resume is None
    queues = [open_queue(stack, None, submits=submits, managed=managed) for stack in stacks]
    framework = _FRAMEWORK if given["command"] is None and submits else given["framework"]
    warnings = [why_without_tpu(one, framework) for one in stacks if not managed]
    queues += [open_queue(None, bucket, managed=managed) for bucket in buckets]
    if not queues:
        raise UsageError("give --stack NAME or --bucket gs://BUCKET, once or several times")
    with explained(queues[0]):
        if resume is None:
            record, begun = _begin(queues, stacks, given)
        else:
            _refuse_others()
            record = sweeps.Record(queues[0].store, resume)
            begun = _continued(record.read(), queues, stacks, given["image"])
        # Vertex AI gives each trial its own machine: no queue's machine is waited for.
        warnings += [] if begun.places else map(why_waiting, queues)
        for warning in filter(None, warnings):
            _say(f"warning: {warning}")
        _say(
            f"sweep {begun.name}: {begun.wanted} trials. If this ends, continue it by "
            f"--resume {begun.name}"
        )
        by_bucket = {queue.store.bucket: queue for queue in queues}
        driver = sweeps.Driver(begun, record, by_bucket, _say)
        driver.run()
    _print(driver.sweep, plot, as_json=as_json)
    sys.exit(0 if driver.sweep.best else 1)


def _say(line: str) -> None:
    click.echo(console.plain(line), err=True)


def _begin(
    queues: Sequence[Queue], stacks: Sequence[str], given: dict[str, Any]
) -> tuple[sweeps.Record, sweeps.Sweep]:
    """Return a new sweep, whose archive and record are in the bucket.

    Everything that can be wrong is found before the first write: nothing deletes a record.
    """
    if given["command"] is None:
        command = command_of(next(iter(stacks), None), managed=given["on"] == "vertex")
        given |= {"command": command, "framework": _FRAMEWORK}
    settings = {key: given.pop(key) for key in _SETTINGS}
    name, command = given.pop("name"), given["command"]
    space = sweeps.space_of(settings["params"])
    if not space:
        raise UsageError("--param: give at least one, like --param learning_rate=1e-4..1e-1:log")
    first = {one.name: one.choices[0] if one.choices else one.low for one in space}
    # What is checked is what a trial would run.
    asked = JobOptions(**{**given, "command": sweeps.command_with(command, first)})
    places = {}
    if asked.on_vertex:
        of_stacks = zip(queues, stacks, strict=True)
        places = {queue.store.bucket: place_of(stack, asked) for queue, stack in of_stacks}
    else:
        place_of(None, asked)  # Refuses what is for Vertex AI alone.
    spec, source = asked.checked(None)
    # The name is by all that makes the sweep, so the same one is not begun twice by accident.
    on = next(iter(places.values()), {})
    all_of_it = replace(spec, command=f"{command} {settings}", vertex=on)
    made = sweeps.Sweep(
        name=name if name is not None else name_of(all_of_it),
        spec=replace(spec, command=command),
        buckets=tuple(queue.store.bucket for queue in queues),
        places=places,
        **settings,
    )
    record = sweeps.Record(queues[0].store, made.name)
    # Before the record: a command that continues the sweep needs the archive in the bucket.
    for queue in queues:
        if source.archive is not None:
            upload(queue, source.archive)
    record.write(made)
    return record, made


def command_of(stack: str | None, *, managed: bool = False) -> str:
    """Return what trains as the stack's settings say.

    Raises:
        UsageError: there is no stack, or Vertex AI is to run it, whose containers lack the trainer.
    """
    from tpustack.stacks import load

    if managed:
        raise UsageError(
            "--command: (not given), and the stack's own training is not in the containers of "
            'Vertex AI. Give one like --command "python main.py"'
        )
    if stack is None:
        raise UsageError(
            "--command: (not given), and without --stack there is no training to vary. Give one "
            'like --command "python main.py"'
        )
    # Quoted, since bash on the machine splits them again.
    return " ".join([_TRAINER, *map(shlex.quote, load(stack).training.args)])


def _refuse_others() -> None:
    """Raise UsageError for options that a sweep has for good once it is begun."""
    # click knows whether a value is a default, which their values alone do not show.
    context = click.get_current_context()
    given = {
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name is not None
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    if others := sorted(given - _WITH_RESUME):
        raise UsageError(
            f"--resume keeps the options that the sweep began with: leave out {', '.join(others)}"
        )


def _continued(
    found: sweeps.Sweep, queues: Sequence[Queue], stacks: Sequence[str], image: str | None
) -> sweeps.Sweep:
    """Return a sweep that runs where the person says. Raises UsageError if its record differs.

    Others may write the record: by its word alone, jobs would be submitted to any bucket.
    """
    named = {queue.store.bucket for queue in queues}
    if named != set(found.buckets) or (found.places and len(stacks) < len(queues)):
        what = "the stacks (--stack)" if found.places else "the stacks or buckets"
        raise UsageError(
            f"--resume: name {what} of {', '.join(f'gs://{one}' for one in found.buckets)} again, "
            f"if you began the sweep {found.name} with these: its record says so"
        )
    places = {}
    for queue, stack in zip(queues, stacks if found.places else (), strict=False):
        spec = replace(found.spec, vertex=found.places.get(queue.store.bucket, {}))
        places[queue.store.bucket] = place_again(stack, image, spec)
    return replace(found, places=places)


@click.command("trials")
@click.argument("sweep")
@on_queue
@_PLOT
@console.as_json("trials")
def trials(queue: Queue, sweep: str, plot: Path | None, as_json: bool) -> None:
    """Show the trials of a sweep, as far as it has come."""
    _print(sweeps.Record(queue.store, sweep).read(), plot, as_json=as_json)


def _print(sweep: sweeps.Sweep, plot: Path | None, *, as_json: bool) -> None:
    # Before the picture, which may fail: a full disk should not hide what hours have found.
    if as_json:
        click.echo(json.dumps(sweep.document(), indent=2))
    else:
        Console().print(_table(sweep))
    if plot is not None:
        _draw(sweep, plot)


def _table(sweep: sweeps.Sweep) -> Table:
    """Return the trials, the best first, then those that have no value."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    names = [one.name for one in sweeps.space_of(sweep.params)]
    for name in ("trial", "state", console.line(sweep.metric), *names, "job", "steps"):
        made.add_column(Text(name), no_wrap=True)
    for one in sorted(sweep.trials, key=sweep.rank):
        best = " *" if one == sweep.best else ""
        value = "" if one.value is None else f"{one.value:.6g}"
        steps = str(one.reports[-1][0]) if one.reports else ""
        params = (str(one.params[name]) for name in names)
        cells = (f"{one.number}{best}", one.state, value, *params, one.job, steps)
        made.add_row(*(Text(console.line(cell)) for cell in cells))
    return made


def _draw(sweep: sweeps.Sweep, path: Path) -> None:
    """Draw the metric by step and by each parameter. Raises TpustackError if it can't."""
    # Loaded here: an extra, which the table does without.
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    space, best = sweeps.space_of(sweep.params), sweep.best
    shown = [(one, _BEST if one == best else _COLOURS[one.state]) for one in sweep.trials]
    ended = [pair for pair in shown if pair[0].value is not None]
    try:
        with rc_context(_STYLE):
            size = (_PANEL * (1 + len(space)), _HEIGHT)
            figure = Figure(figsize=size, dpi=110, layout="constrained")
            curves, *others = figure.subplots(1, 1 + len(space), squeeze=False)[0]
            for one, colour in shown:
                steps, values = [step for step, _ in one.reports], [v for _, v in one.reports]
                # A line of one point would not be seen.
                marker = "o" if len(steps) == 1 else None
                curves.plot(steps, values, color=colour, marker=marker, markersize=3)
            if best:
                curves.set_title(f"best: trial {best.number}, {best.value:.4g}", loc="left")
            curves.set(xlabel="step")
            for axes, parameter in zip(others, space, strict=True):
                axes.scatter(
                    [one.params[parameter.name] for one, _ in ended],
                    [one.value for one, _ in ended],
                    c=[colour for _, colour in ended],
                    s=22,
                )
                if parameter.is_log:
                    axes.set_xscale("log")
                axes.set(xlabel=parameter.name)
            for axes in (curves, *others):
                # Its name is any text, also one with the signs of a formula.
                axes.set_ylabel(sweep.metric, parse_math=False)
            content = io.BytesIO()
            figure.savefig(content, format=path.suffix[1:], metadata=_METADATA[path.suffix])
        path.write_bytes(content.getvalue())
    except (OSError, ValueError) as error:
        # ValueError: a choice that looks like a formula, and isn't one.
        raise TpustackError(f"--plot: {path} can't be written: {error}") from None
