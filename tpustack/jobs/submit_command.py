"""`tpustack job submit`."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from tpustack import console
from tpustack.jobs import arguments, spec_options
from tpustack.jobs.on_demand import OnDemand
from tpustack.jobs.place import explained, open_queue, why_without_tpu
from tpustack.jobs.runners import why_waiting
from tpustack.jobs.submit import submit
from tpustack.jobs.vertex import options as on_vertex
from tpustack.jobs.vertex.place import place_of
from tpustack.jobs.vertex.submit import hand_over


@click.command("submit")
@arguments.place
@spec_options.declared
@click.option("--name", help="The job's name; by default one from its content.")
@on_vertex.declared
@click.option(
    "--idle-stop",
    type=click.IntRange(1, 10080),
    metavar="MINUTES",
    help="Take the TPU down once nothing has run for so long.",
)
@click.option("--create", is_flag=True, help="Run `pulumi up` first if the stack is down.")
@console.as_json("job")
def command(
    stack: str | None,
    bucket: str | None,
    name: str | None,
    idle_stop: int | None,
    create: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Put a job into the queue of a stack, and say its name.

    The machine runs it as soon as the TPU is free; this computer may be turned off meanwhile.
    With --on vertex, Vertex AI runs it on a TPU of its own.
    """
    asked = on_vertex.asked(given)
    managed = asked.managed
    queue = open_queue(stack, bucket, submits=True, managed=managed)
    wanted = spec_options.Given(**given)
    vertex = place_of(stack, asked, wanted)
    on_demand = OnDemand(stack, idle_stop, create=create, managed=managed)
    without_tpu = None if managed else why_without_tpu(stack, wanted.framework)
    with wanted.described(name) as (described, source), explained(queue):
        spec = dataclasses.replace(described, vertex=vertex)
        on_demand.prepare(queue, _say)
        job = hand_over(queue, submit(queue, spec, name, source.archive), vertex)
        warnings = [] if managed else [on_demand.finish(queue), without_tpu]
        # A machine that was just made takes a while until it looks.
        warnings += [] if managed or create else [why_waiting(queue)]
    for warning in filter(None, warnings):
        _say(f"warning: {warning}")
    click.echo(json.dumps({"name": job.name, "state": job.state}) if as_json else job.name)


def _say(line: str) -> None:
    click.echo(line, err=True)
