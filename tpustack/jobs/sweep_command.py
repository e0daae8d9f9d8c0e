"""`tpustack job sweep` and `job trials`: begin or continue a sweep, and show its trials."""

import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from tpu_agent.jobs.queue import Queue
from tpustack import console
from tpustack.errors import TpustackError, UsageError
from tpustack.jobs import job as jobs
from tpustack.jobs import spec as options
from tpustack.jobs import sweep as sweeps
from tpustack.jobs.queue import explained, open_queue, why_waiting, why_without_tpu
from tpustack.jobs.source import upload

# What the stack's own training is written for, and how the agent's variables become its arguments.
_FRAMEWORK = "tensorflow"
_TRAINER = (
    'python -m tpu_training train-and-evaluate --tpu="$TPU_NAME" --tpu-zone="$TPU_ZONE" '
    '--tpu-project="$TPU_PROJECT" --data="$DATA_DIR" --model-dir="$MODEL_DIR"'
)
_BEST, _COMPLETE, _PRUNED = "#1b7837", "#2166ac", "#b0b0b0"
# The options that are fields of a Sweep under the same names.
_SETTINGS = ("params", "wanted", "parallel", "metric", "goal", "seed")
_BUCKETS = click.option("--bucket", "buckets", multiple=True, help="This bucket's queue: gs://B.")
_STACKS = click.option(
    *("--stack", "-s", "stacks"),
    multiple=True,
    shell_complete=console.stacks,
    help="The queue of this stack; may be given several times, as --bucket may.",
)


def _drawable(ctx: click.Context, param: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a picture that could not be drawn: asked before hours have passed."""
    if path is None:
        return None
    if path.suffix not in (".png", ".svg"):
        raise UsageError(f"--plot: {path} ends with neither .png nor .svg")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"--plot: there is no folder {path.absolute().parent}")
    if find_spec("matplotlib") is None:
        raise UsageError(
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


@click.command("sweep")
@_STACKS
@_BUCKETS
@click.option(
    "--param", "params", multiple=True, required=True, metavar="NAME=RANGE", help="What varies."
)
@click.option(
    "--trials", "wanted", type=click.IntRange(1, 1000), default=12, help="How many jobs (12)."
)
@click.option("--parallel", type=click.IntRange(1, 64), default=2, help="At a time a queue (2).")
@click.option("--metric", default="loss", help="The figure of the jobs that counts.")
@click.option(
    "--goal", type=click.Choice((sweeps.MINIMIZE, sweeps.MAXIMIZE)), default=sweeps.MINIMIZE
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, help="Of the search (0).")
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
    queues = _open_queues(stacks, buckets, submits=True)
    if given["command"] is None:
        given |= {"command": command_of(next(iter(stacks), None)), "framework": _FRAMEWORK}
    for warning in filter(None, [why_without_tpu(one, given["framework"]) for one in stacks]):
        _say(f"warning: {warning}")
    with explained(queues[0]):
        record, begun = _begin(queues, given)
        _drive(queues, record, begun, plot, as_json=as_json)


def _open_queues(
    stacks: Sequence[str], buckets: Sequence[str], *, submits: bool = False
) -> list[Queue]:
    """Return the queues that a person names. Raises UsageError if there is none."""
    queues = [open_queue(stack, None, submits=submits) for stack in stacks]
    queues += [open_queue(None, bucket) for bucket in buckets]
    if not queues:
        raise UsageError("give --stack NAME or --bucket gs://BUCKET, once or several times")
    return queues


def _drive(
    queues: Sequence[Queue],
    record: sweeps.Record,
    begun: sweeps.Sweep,
    plot: Path | None,
    *,
    as_json: bool,
) -> None:
    """Run what is left of a sweep, print it, and end the process."""
    for warning in filter(None, map(why_waiting, queues)):
        _say(f"warning: {warning}")
    _say(
        f"sweep {begun.name}: {begun.wanted} trials. If this ends, `tpustack job trials --resume "
        f"{begun.name}` continues it"
    )
    driver = sweeps.Driver(begun, record, {queue.store.bucket: queue for queue in queues}, _say)
    driver.run()
    _print(driver.sweep, plot, as_json=as_json)
    sys.exit(0 if driver.sweep.best else 1)


def _say(text: str) -> None:
    click.echo(console.plain(text), err=True)


def _begin(queues: Sequence[Queue], given: dict[str, Any]) -> tuple[sweeps.Record, sweeps.Sweep]:
    """Return a new sweep, whose archive and record are in the bucket.

    Everything that can be wrong is found before the first write: nothing deletes a record.
    """
    settings = {key: given.pop(key) for key in _SETTINGS}
    name, command = given.pop("name"), given["command"]
    space = sweeps.space_of(settings["params"])
    first = {one.name: one.choices[0] if one.choices else one.low for one in space}
    # What is checked is what a trial would run.
    asked = options.JobOptions(**{**given, "command": sweeps.command_with(command, first)})
    spec, source = asked.checked(None)
    # The name is by all that makes the sweep, so the same one is not begun twice by accident.
    all_of_it = replace(spec, command=f"{command} {settings}")
    name = jobs.name_of(all_of_it) if name is None else name
    buckets = tuple(queue.store.bucket for queue in queues)
    made = sweeps.Sweep(name=name, spec=replace(spec, command=command), buckets=buckets, **settings)
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
        raise UsageError(
            "--command: (not given), and without --stack there is no training to vary. Give one "
            'like --command "python main.py"'
        )
    # Quoted, since bash on the machine splits them again.
    return " ".join([_TRAINER, *map(shlex.quote, load(stack).training.args)])


@click.command("trials")
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
    queues = _open_queues(stacks, buckets)
    with explained(queues[0]):
        record = sweeps.Record(queues[0].store, sweep)
        found = record.read()
        if resume:
            sweeps.require_optuna()
            # Others may write the record: by its word alone, jobs would go to any bucket.
            if {queue.store.bucket for queue in queues} != set(found.buckets):
                raise UsageError(
                    "--resume: name the stacks or buckets of "
                    f"{', '.join(f'gs://{one}' for one in found.buckets)} again, if you began the "
                    f"sweep {sweep} with these: its record says so"
                )
            _drive(queues, record, found, plot, as_json=as_json)
        _print(found, plot, as_json=as_json)


def _print(sweep: sweeps.Sweep, plot: Path | None, *, as_json: bool) -> None:
    """Print the trials, the best first, then those that have no value; draw them."""
    if as_json:
        document = {**asdict(sweep), "best": sweep.best and sweep.best.number}
        click.echo(json.dumps(document, indent=2))
    else:
        click.echo("\n".join(_table(sweep)))
    if plot is not None:  # After the table: a full disk should not hide what hours have found.
        _draw(sweep, plot)


def _table(sweep: sweeps.Sweep) -> list[str]:
    from infra.cost import aligned

    names = [one.name for one in sweeps.space_of(sweep.params)]
    rows = [("trial", "state", console.line(sweep.metric), *names, "job", "steps")]
    for one in sorted(sweep.trials, key=sweep.rank):
        best = " *" if one == sweep.best else ""
        value = "" if one.value is None else f"{one.value:.6g}"
        steps = str(one.reports[-1][0]) if one.reports else ""
        params = (str(one.params[name]) for name in names)
        cells = (f"{one.number}{best}", one.state, value, *params, one.job, steps)
        rows.append(tuple(map(console.line, cells)))
    return aligned(rows, left=len(rows[0]))


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
        raise TpustackError(f"--plot: {path} can't be written: {error}") from None
