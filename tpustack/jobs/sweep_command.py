"""`tpustack job sweep` and `tpustack job trials`."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tpu_agent.jobs.queue import Queue
from tpu_core.paths import NAME
from tpustack import console
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs.queue import explained, open_queue, why_waiting, why_without_tpu
from tpustack.jobs.spec import JobOptions, job_options, queue_options
from tpustack.jobs.submission import name_of, upload
from tpustack.jobs.sweep import (
    COMPLETE,
    MAXIMIZE,
    MINIMIZE,
    OPEN,
    PRUNED,
    PRUNERS,
    Driver,
    Parameter,
    Record,
    Sweep,
    Trial,
    command_with,
    require_optuna,
    space_of,
)
from tpustack.jobs.vertex import place_again, place_of

_LONGEST_NAME = 50
# What the stack's own training is written for.
_FRAMEWORK = "tensorflow"
_SETTINGS = ("params", "wanted", "parallel", "metric", "goal", "pruner", "seed")
_PLOT = click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw the trials into this PNG or SVG."
)


@click.command("sweep")
@click.option("--stack", "-s", "stacks", multiple=True, shell_complete=console.stacks)
@click.option("--bucket", "buckets", multiple=True, help="The queue of this bucket: gs://BUCKET.")
@click.option("--param", "params", multiple=True, metavar="NAME=RANGE", help="What varies.")
@click.option(
    "--trials", "wanted", type=click.IntRange(1, 1000), default=12, help="How many jobs (12)."
)
@click.option("--parallel", type=click.IntRange(1, 64), default=2, help="At a time a queue (2).")
@click.option("--metric", default="loss", help="What of the jobs' figures counts.")
@click.option("--goal", type=click.Choice((MINIMIZE, MAXIMIZE)), default=MINIMIZE)
@click.option(
    "--pruner",
    type=click.Choice(PRUNERS),
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
    require_optuna()
    check_plot(plot)
    managed = given["on"] == "vertex"
    submits = resume is None
    queues = [open_queue(stack, None, submits=submits, managed=managed) for stack in stacks]
    framework = _FRAMEWORK if given["command"] is None and submits else given["framework"]
    without_tpu = [why_without_tpu(one, framework) for one in stacks if not managed]
    queues += [open_queue(None, bucket, managed=managed) for bucket in buckets]
    if not queues:
        raise UsageError("give --stack NAME or --bucket gs://BUCKET, once or several times")
    with explained(queues[0]):
        if resume is None:
            if given["command"] is None:
                trains = {"command": command_of(next(iter(stacks), None), managed=managed)}
                given |= {**trains, "framework": _FRAMEWORK}
            record, wanted = _begin(queues, stacks, given)
        else:
            _refuse_others()
            record = Record(queues[0].store, _sound(resume))
            wanted = _continue(record.read(), queues, stacks, given["image"])
        _drive(wanted, record, queues, plot, without_tpu, as_json=as_json)


def _drive(
    wanted: Sweep,
    record: Record,
    queues: Sequence[Queue],
    plot: Path | None,
    warnings: Sequence[str | None],
    *,
    as_json: bool,
) -> None:
    """Drive a sweep to its end, and exit with 0 if a trial has succeeded."""

    def say(line: str) -> None:
        click.echo(console.plain(line), err=True)

    waiting = map(why_waiting, [] if wanted.places else queues)
    for warning in filter(None, (*warnings, *waiting)):
        say(f"warning: {warning}")
    say(
        f"sweep {wanted.name}: {wanted.wanted} trials. If this ends, continue it by "
        f"--resume {wanted.name}"
    )
    driver = Driver(wanted, record, {queue.store.bucket: queue for queue in queues}, say)
    driver.run()
    _print(driver.sweep, plot, as_json=as_json)
    sys.exit(0 if driver.sweep.best else 1)


def _refuse_others() -> None:
    """Raise UsageError for options that a sweep has for good once it is begun."""
    context = click.get_current_context()
    given = {
        parameter.opts[0]
        for parameter in context.command.params
        if parameter.name is not None
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    }
    if others := sorted(given - {"--resume", "--stack", "--bucket", "--image", "--plot", "--json"}):
        raise UsageError(
            f"--resume keeps the options that the sweep began with: leave out {', '.join(others)}"
        )


def _continue(
    found: Sweep, queues: Sequence[Queue], stacks: Sequence[str], image: str | None
) -> Sweep:
    """Return a sweep that runs where the person says. Raises UsageError if its record differs."""
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
@queue_options
@_PLOT
@console.as_json("trials")
def trials(
    sweep: str, stack: str | None, bucket: str | None, plot: Path | None, as_json: bool
) -> None:
    """Show the trials of a sweep, as far as it has come."""
    check_plot(plot)
    queue = open_queue(stack, bucket)
    with explained(queue):
        found = Record(queue.store, _sound(sweep)).read()
    _print(found, plot, as_json=as_json)


def _begin(
    queues: Sequence[Queue], stacks: Sequence[str], given: dict[str, Any]
) -> tuple[Record, Sweep]:
    """Return a new sweep, whose archive and record are in the bucket."""
    settings = {key: given.pop(key) for key in _SETTINGS}
    name, command = given.pop("name"), given["command"]
    space = space_of(settings["params"])
    if not space:
        raise UsageError("--param: give at least one, like --param learning_rate=1e-4..1e-1:log")
    first = {one.name: one.choices[0] if one.choices else one.low for one in space}
    # What is checked is what a trial would run.
    asked = JobOptions(**{**given, "command": command_with(command, first)})
    places = _places(queues, stacks, asked)
    with asked.checked(None) as (spec, source):
        on = next(iter(places.values()), {})
        all_of_it = replace(spec, command=f"{command} {settings}", vertex=on)
        made = Sweep(
            name=_sound(name) if name is not None else name_of(all_of_it),
            spec=replace(spec, command=command),
            buckets=tuple(queue.store.bucket for queue in queues),
            places=places,
            **settings,
        )
        if source.archive is not None:
            for queue in queues:
                upload(queue, source.archive)
    record = Record(queues[0].store, made.name)
    record.write(made)
    return record, made


def _places(
    queues: Sequence[Queue], stacks: Sequence[str], asked: JobOptions
) -> dict[str, dict[str, str]]:
    """Return where Vertex AI runs the trials of each bucket; nothing if it does not."""
    if not asked.on_vertex:
        place_of(None, asked)
        return {}
    of_stacks = zip(queues, stacks, strict=True)
    return {queue.store.bucket: place_of(stack, asked) for queue, stack in of_stacks}


def _sound(name: str) -> str:
    if len(name) > _LONGEST_NAME or not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a sweep (at most {_LONGEST_NAME} lower-case letters, digits, "
            "hyphens, dots, underscores; a letter or digit first and last)"
        )
    return name


def _print(found: Sweep, plot: Path | None, *, as_json: bool) -> None:
    if plot is not None:
        draw_plot(found, plot)
    if as_json:
        click.echo(json.dumps(found.document(), indent=2))
    else:
        Console().print(trials_table(found))


_COLOURS = {COMPLETE: "#2166ac", PRUNED: "#b0b0b0", OPEN: "#f4a582"}
_FAILED = "#b2182b"
_BEST = "#1b7837"
_STYLE: Any = {"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "sweep"}
_METADATA: Mapping[str, Any] = {
    ".png": {"Software": None},
    ".svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
}
_PANEL, _HEIGHT, _DOTS_PER_INCH = 3.4, 3.2, 110


def trials_table(sweep: Sweep) -> Table:
    """Return the trials, the best first, then those that have no value."""
    made = Table(box=None, padding=(0, 2, 0, 0))
    names = [one.name for one in space_of(sweep.params)]
    for name in ("trial", "state", console.line(sweep.metric), *names, "job", "steps"):
        made.add_column(Text(name), no_wrap=True)
    for one in sorted(sweep.trials, key=lambda one: _rank(sweep, one)):
        best = " *" if one == sweep.best else ""
        value = "" if one.value is None else f"{one.value:.6g}"
        steps = str(one.reports[-1][0]) if one.reports else ""
        params = (str(one.params[name]) for name in names)
        cells = (f"{one.number}{best}", one.state, value, *params, one.job, steps)
        made.add_row(*(Text(console.line(cell)) for cell in cells))
    return made


def check_plot(path: Path | None) -> None:
    """Raise UsageError unless a picture can be drawn into a file of that name."""
    if path is None:
        return
    if path.suffix not in _METADATA:
        raise UsageError(f"--plot: {path} ends with neither .png nor .svg")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no folder {path.absolute().parent}")
    try:
        import matplotlib  # noqa: F401 # Asked before hours have passed.
    except ImportError:
        raise UsageError(
            "--plot needs matplotlib, which is not installed: `pip install matplotlib`, or this "
            "package with its extra `sweep`"
        ) from None


def draw_plot(sweep: Sweep, path: Path) -> None:
    """Draw curves and parameters into a file. Raises TpustackError if it can't be written."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    space = space_of(sweep.params)
    with rc_context(_STYLE):
        size = (_PANEL * (1 + len(space)), _HEIGHT)
        figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
        curves, *others = figure.subplots(1, 1 + len(space), squeeze=False)[0]
        _draw_curves(curves, sweep)
        for axes, parameter in zip(others, space, strict=True):
            _draw_parameter(axes, sweep, parameter)
        content = io.BytesIO()
        figure.savefig(content, format=path.suffix[1:], metadata=_METADATA[path.suffix])
    try:
        path.write_bytes(content.getvalue())
    except OSError as error:
        raise TpustackError(f"--plot: {path} can't be written: {error.strerror}") from None


def _draw_curves(axes: Any, sweep: Sweep) -> None:
    for one in sweep.trials:
        steps, values = [s for s, _ in one.reports], [v for _, v in one.reports]
        marker = "o" if len(steps) == 1 else None
        axes.plot(steps, values, color=_colour(sweep, one), marker=marker, markersize=3)
    if sweep.best:
        axes.set_title(f"best: trial {sweep.best.number}, {sweep.best.value:.4g}", loc="left")
    axes.set(xlabel="step", ylabel=sweep.metric)


def _draw_parameter(axes: Any, sweep: Sweep, parameter: Parameter) -> None:
    shown = [one for one in sweep.trials if one.value is not None]
    axes.scatter(
        [one.params[parameter.name] for one in shown],
        [one.value for one in shown],
        c=[_colour(sweep, one) for one in shown],
        s=22,
    )
    if parameter.is_log:
        axes.set_xscale("log")
    axes.set(xlabel=parameter.name, ylabel=sweep.metric)


def _colour(sweep: Sweep, trial: Trial) -> str:
    return _BEST if trial == sweep.best else _COLOURS.get(trial.state, _FAILED)


def _rank(sweep: Sweep, trial: Trial) -> tuple[bool, bool, float, int]:
    sign = -1 if sweep.goal == MAXIMIZE else 1
    value = sign * trial.value if trial.value is not None else 0.0
    return trial.value is None, trial.state == PRUNED, value, trial.number


_TRAINER = (
    'python -m tpu_training train-and-evaluate --tpu="$TPU_NAME" --tpu-zone="$TPU_ZONE" '
    '--tpu-project="$TPU_PROJECT" --data="$DATA_DIR" --model-dir="$MODEL_DIR"'
)


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
    return " ".join([_TRAINER, *map(shlex.quote, load(stack).training.args)])
