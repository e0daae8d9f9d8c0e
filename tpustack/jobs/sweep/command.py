"""`tpustack job sweep` and `tpustack job trials`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from rich.console import Console

from tpu_agent.jobs.queue import Queue
from tpu_core.paths import NAME
from tpustack import inert, options
from tpustack.errors import UsageError
from tpustack.jobs import arguments, spec_options
from tpustack.jobs.place import explained, open_queue, why_without_tpu
from tpustack.jobs.runners import why_waiting
from tpustack.jobs.submit import name_of, upload
from tpustack.jobs.sweep import show, tuner
from tpustack.jobs.sweep.driver import Driver
from tpustack.jobs.sweep.record import MAXIMIZE, MINIMIZE, Record, Sweep
from tpustack.jobs.sweep.space import command_with, space_of
from tpustack.jobs.sweep.trainer import command_of
from tpustack.jobs.vertex import options as on_vertex
from tpustack.jobs.vertex.place import place_again, place_of

_LONGEST_NAME = 50
# What the stack's own training is written for.
_TRAINER = "tensorflow"
_SETTINGS = ("params", "wanted", "parallel", "metric", "goal", "pruner", "seed")
_PLOT = click.option(
    "--plot", type=click.Path(path_type=Path), help="Draw the trials into this PNG or SVG."
)


@click.command("sweep")
@click.option("--stack", "-s", "stacks", multiple=True, shell_complete=options.stacks)
@click.option("--bucket", "buckets", multiple=True, help="The queue of this bucket: gs://BUCKET.")
@click.option("--param", "params", multiple=True, metavar="NAME=RANGE", help="What varies.")
@click.option(
    "--trials", "wanted", type=click.IntRange(1, 1000), default=12, help="How many jobs (12)."
)
@click.option("--parallel", type=click.IntRange(1, 64), default=2, help="At a time a queue (2).")
@click.option("--metric", default="loss", help="What of the jobs' figures counts.")
@click.option("--goal", type=click.Choice((MINIMIZE, MAXIMIZE)), default=MINIMIZE)
@click.option(
    "--pruner", type=click.Choice(tuner.PRUNERS), default="median", help="Which trials end early."
)
@click.option("--seed", type=click.IntRange(0, 2**31), default=0, help="Of the search (0).")
@click.option(
    "--resume", metavar="NAME", help="Go on with this sweep, where it runs; takes no other options."
)
@click.option("--name", help="The sweep's name; by default one from its content.")
@_PLOT
@options.as_json("trials")
@on_vertex.declared
@spec_options.declared
def sweep(
    stacks: tuple[str, ...],
    buckets: tuple[str, ...],
    resume: str | None,
    plot: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Look for the best parameters: each trial is a job of the queue.

    Without --command, the trials are the training of the stack. Interrupt it when you like: jobs go
    on, and --resume does, too. Poor trials end early. With --on vertex, Vertex AI runs each on a
    TPU of its own.
    """
    tuner.require_optuna()
    show.check_plot(plot)
    asked = on_vertex.asked(given)
    managed = asked.managed
    submits = resume is None
    queues = [open_queue(stack, None, submits=submits, managed=managed) for stack in stacks]
    framework = _TRAINER if given["command"] is None and submits else given["framework"]
    without_tpu = [why_without_tpu(one, framework) for one in stacks if not managed]
    queues += [open_queue(None, bucket, managed=managed) for bucket in buckets]
    if not queues:
        raise UsageError("give --stack NAME or --bucket gs://BUCKET, once or several times")
    with explained(queues[0]):
        if resume is None:
            if given["command"] is None:
                trains = {"command": command_of(next(iter(stacks), None), managed=managed)}
                given |= {**trains, "framework": _TRAINER}
            record, wanted = _begun(queues, stacks, asked, given)
        else:
            _refuse_others()
            record = Record(queues[0].store, _sound(resume))
            wanted = _named_again(record.read(), queues, stacks, asked.image)
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
    """Go on with a sweep to its end, and end with 0 if a trial has succeeded."""

    def say(line: str) -> None:
        click.echo(inert.plain(line), err=True)

    waiting = map(why_waiting, [] if wanted.places else queues)
    for warning in filter(None, (*warnings, *waiting)):
        say(f"warning: {warning}")
    say(
        f"sweep {wanted.name}: {wanted.wanted} trials. If this ends, --resume {wanted.name} goes on"
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
            f"--resume goes on with what the sweep was begun with: leave out {', '.join(others)}"
        )


def _named_again(
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
@arguments.place
@_PLOT
@options.as_json("trials")
def trials(
    sweep: str, stack: str | None, bucket: str | None, plot: Path | None, as_json: bool
) -> None:
    """Show the trials of a sweep, as far as it has come."""
    show.check_plot(plot)
    queue = open_queue(stack, bucket)
    with explained(queue):
        found = Record(queue.store, _sound(sweep)).read()
    _print(found, plot, as_json=as_json)


def _begun(
    queues: Sequence[Queue],
    stacks: Sequence[str],
    asked: on_vertex.Asked,
    given: dict[str, Any],
) -> tuple[Record, Sweep]:
    """Return a new sweep, whose archive and record are in the bucket."""
    settings = {key: given.pop(key) for key in _SETTINGS}
    name, command = given.pop("name"), given["command"]
    space = space_of(settings["params"])
    if not space:
        raise UsageError("--param: give at least one, like --param learning_rate=1e-4..1e-1:log")
    first = {one.name: one.choices[0] if one.choices else one.low for one in space}
    # What is checked is what a trial would run.
    described = spec_options.Given(**{**given, "command": command_with(command, first)})
    places = _places(queues, stacks, asked, described)
    with described.described(None) as (spec, source):
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
    queues: Sequence[Queue],
    stacks: Sequence[str],
    asked: on_vertex.Asked,
    wanted: spec_options.Given,
) -> dict[str, dict[str, str]]:
    """Return where Vertex AI runs the trials of each bucket; nothing if it does not."""
    if not asked.managed:
        place_of(None, asked, wanted)
        return {}
    of_stacks = zip(queues, stacks, strict=True)
    return {queue.store.bucket: place_of(stack, asked, wanted) for queue, stack in of_stacks}


def _sound(name: str) -> str:
    if len(name) > _LONGEST_NAME or not NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a sweep (at most {_LONGEST_NAME} lower-case letters, digits, "
            "hyphens, dots, underscores; a letter or digit first and last)"
        )
    return name


def _print(found: Sweep, plot: Path | None, *, as_json: bool) -> None:
    if plot is not None:
        show.plot(found, plot)
    if as_json:
        click.echo(json.dumps(found.document(), indent=2))
    else:
        Console().print(show.table(found))
