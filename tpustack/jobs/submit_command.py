"""`tpustack job submit`."""

from __future__ import annotations

import json
from typing import Any

import click

from tpustack import options
from tpustack.jobs import arguments, spec_options
from tpustack.jobs.place import explained, open_queue, why_without_tpu
from tpustack.jobs.runners import why_waiting
from tpustack.jobs.submit import submit


@click.command("submit")
@arguments.place
@spec_options.declared
@click.option("--name", help="The job's name; by default one from its content.")
@options.as_json("job")
def command(
    stack: str | None, bucket: str | None, name: str | None, as_json: bool, **given: Any
) -> None:
    """Put a job into the queue of a stack, and say its name.

    The machine runs it as soon as the TPU is free; this computer may be turned off meanwhile.
    """
    queue = open_queue(stack, bucket, submits=True)
    wanted = spec_options.Given(**given)
    with wanted.described(name) as (spec, source), explained(queue):
        job = submit(queue, spec, name, source.archive)
        warnings = [why_waiting(queue), why_without_tpu(stack, spec.framework)]
    for warning in filter(None, warnings):
        click.echo(f"warning: {warning}", err=True)
    click.echo(json.dumps({"name": job.name, "state": job.state}) if as_json else job.name)
