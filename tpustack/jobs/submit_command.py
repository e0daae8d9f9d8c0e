"""`tpustack job submit`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from infra.startup.agent.jobs.record import FRAMEWORKS, Spec
from tpustack import options
from tpustack.jobs import arguments
from tpustack.jobs.place import explained, open_queue, why_without_tpu
from tpustack.jobs.runners import why_waiting
from tpustack.jobs.source import source_of
from tpustack.jobs.submit import submit
from tpustack.jobs.wanted import Wanted, check

_BUDGET = click.IntRange(0, 1000)
_FILE = click.Path(path_type=Path)


@click.command("submit")
@arguments.place
@click.option("--command", "-c", required=True, help='What bash runs, such as "python main.py".')
@click.option("--dir", "folder", type=_FILE, help="Take this folder along.")
@click.option("--wheel", type=_FILE, help="Install this wheel.")
@click.option("--git", help="Take a commit along: URL@REF. It is fetched here, with your rights.")
@click.option("--env", multiple=True, metavar="NAME=VALUE", help="A variable; may be repeated.")
@click.option("--requirements", type=_FILE, help="Install this; with hashes, only what has them.")
@click.option(
    "--framework",
    type=click.Choice(FRAMEWORKS),
    default="none",
    help="Whose variables to set; tensorflow: with the machine's TensorFlow and trainer.",
)
@click.option("--name", help="The job's name; by default one from its content.")
@click.option("--priority", type=click.IntRange(-1000, 1000), default=0, help="Higher runs first.")
@click.option("--after", multiple=True, metavar="JOB", help="Run once JOB has succeeded.")
@click.option("--timeout", type=arguments.Span(), help="End a try after so long, such as 2h.")
@click.option("--failures", type=_BUDGET, default=0, help="Starts after failures (0).")
@click.option("--preemptions", type=_BUDGET, default=10, help="Starts after preemptions (10).")
@options.as_json("job")
def command(
    stack: str | None,
    bucket: str | None,
    command: str,
    folder: Path | None,
    wheel: Path | None,
    git: str | None,
    env: tuple[str, ...],
    requirements: Path | None,
    framework: str,
    name: str | None,
    priority: int,
    after: tuple[str, ...],
    timeout: float | None,
    failures: int,
    preemptions: int,
    as_json: bool,
) -> None:
    """Put a job into the queue of a stack, and say its name.

    The machine runs it as soon as the TPU is free; this computer may be turned off meanwhile.
    """
    queue = open_queue(stack, bucket, submits=True)
    wanted = Wanted(command, name, env, requirements)
    with source_of(folder, wheel, git) as source, explained(queue):
        check(wanted, source)
        spec = Spec(
            command=command,
            kind=source.kind,
            archive=source.archive.sha256 if source.archive else "",
            source=source.origin,
            env=wanted.variables(),
            requirements=wanted.requirements_text(),
            framework=framework,
            priority=priority,
            after=after,
            timeout=timeout,
            failures=failures,
            preemptions=preemptions,
        )
        job = submit(queue, spec, name, source.archive)
        warnings = [why_waiting(queue), why_without_tpu(stack, framework)]
    for warning in filter(None, warnings):
        click.echo(f"warning: {warning}", err=True)
    click.echo(json.dumps({"name": job.name, "state": job.state}) if as_json else job.name)
