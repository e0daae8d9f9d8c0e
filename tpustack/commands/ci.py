"""`tpustack ci`: what the workflows call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic

import click

from tpustack import toolchain, wheel
from tpustack.ci import output, requests, settings, touched
from tpustack.ci.checks import path_of, require_backend
from tpustack.ci.deploy import Deployment
from tpustack.ci.deploy import deploy as run_deploy
from tpustack.ci.drift import drift as run_drift
from tpustack.ci.engine import Pipeline
from tpustack.ci.job import Job
from tpustack.ci.outcome import worst
from tpustack.ci.preview import preview as run_preview
from tpustack.ci.result import Result
from tpustack.ci.sweep import destroy as run_destroy
from tpustack.ci.sweep import sweep as run_sweep
from tpustack.errors import UsageError
from tpustack.project import ROOT

_STACKS = click.option("--stack", "-s", "stacks", multiple=True, help="A stack; may be repeated.")
_REQUEST = click.option("--request", type=click.IntRange(1), help="The stack pr-N of request N.")
_OUTPUT = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/ci"),
    show_default=True,
    help="Folder for STACK.md, result.json and plans.",
)
_REFRESH = click.option("--refresh", is_flag=True, help="See what was changed by hand, too.")


@click.group("ci")
def command() -> None:
    """Preview, deploy, look for drift and sweep, in a pipeline or on a laptop.

    Exit codes: 0 nothing changes, 3 changes, 4 drift, 5 policy violation, 1 failure, 2 wrong
    command line. The pipeline's stacks are in stacks/pipeline.yaml.
    """


@command.command("preview")
@click.option("--base", help="What the change is compared with, such as origin/main.")
@_STACKS
@_REQUEST
@_REFRESH
@_OUTPUT
def preview(
    base: str | None, stacks: tuple[str, ...], request: int | None, refresh: bool, output: Path
) -> None:
    """Preview the stacks that a change touches, side by side, and keep their plans."""
    chosen = _chosen(stacks, request)
    if not chosen:
        if base is None:
            raise UsageError("nothing says what to preview. Use --base, --stack or --request")
        chosen = touched.touched(touched.changed_files(ROOT, base), settings.load(ROOT).stacks)
    _run("preview", output, chosen, lambda job: run_preview(job, chosen, base, refresh=refresh))


@command.command("deploy")
@_STACKS
@_REQUEST
@click.option("--branch", help="With --request: the branch; the stack goes when it is gone.")
@click.option(
    "--plans",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the reviewed plans; nothing else is done than what they say.",
)
@_REFRESH
@_OUTPUT
def deploy(
    stacks: tuple[str, ...],
    request: int | None,
    branch: str | None,
    plans: Path | None,
    refresh: bool,
    output: Path,
) -> None:
    """Deploy stacks one after the other, in the order of stacks/pipeline.yaml."""
    pipeline = settings.load(ROOT)
    if (request is None) != (branch is None):
        raise UsageError("--request and --branch need each other")
    chosen = _chosen(stacks, request)
    tags = None
    if branch is not None and pipeline.pull_requests is not None:
        tags = requests.tags(branch, pipeline.pull_requests, requests.now())
    order = list(pipeline.stacks)
    ordered = sorted(chosen, key=lambda each: order.index(each) if each in order else len(order))
    how = Deployment(plans, refresh, tags)
    _run("deploy", output, ordered or order, lambda job: run_deploy(job, ordered or order, how))


@command.command("drift")
@_STACKS
@_OUTPUT
def drift(stacks: tuple[str, ...], output: Path) -> None:
    """Find what was changed by hand. Writes neither the state nor the cloud."""
    chosen = list(stacks) or list(settings.load(ROOT).stacks)
    _run("drift", output, [], lambda job: run_drift(job, chosen))


@command.command("sweep")
@click.option("--remote", default="origin", show_default=True, help="Whose branches count.")
@_OUTPUT
def sweep(remote: str, output: Path) -> None:
    """Remove the stacks of requests whose branch is gone or whose time is up."""
    branches = touched.branches(ROOT, remote)
    _run("sweep", output, [], lambda job: run_sweep(job, branches, requests.now()))


@command.command("destroy")
@click.option("--stack", "-s", required=True, help="The stack.")
@click.option("--confirm", required=True, help="Its name again.")
@_OUTPUT
def destroy(stack: str, confirm: str, output: Path) -> None:
    """Delete everything of a stack, except what is protected."""
    if stack != confirm:
        raise UsageError(f"--confirm {confirm!r} is not the name of the stack, {stack!r}")
    _run("destroy", output, [], lambda job: [run_destroy(job, stack)])


def _chosen(stacks: tuple[str, ...], request: int | None) -> list[str]:
    if request is None:
        return list(stacks)
    return [*stacks, requests.write(ROOT, request, settings.load(ROOT).pull_requests)]


def _run(
    name: str, folder: Path, built: Iterable[str], work: Callable[[Job], Iterable[Result]]
) -> None:
    """Do the work, say and write what became of it, and end the process.

    Args:
        name: the command.
        folder: where its files go.
        built: the stacks that need the training wheel.
        work: the work.
    """
    started = monotonic()
    require_backend({})
    folder.mkdir(parents=True, exist_ok=True)
    if any(_needs_wheel(stack) for stack in built):
        wheel.build()
    environment = toolchain.engine(toolchain.find())
    job = Job(Pipeline(ROOT, environment), ROOT, folder, _report)
    results = []
    for result in work(job):
        results.append(result)
        click.echo(f"{result.stack}: {result.outcome.value}")
        if result.problem:
            click.echo(result.problem, err=True)
    if not results:
        click.echo("No stack is concerned.")
    output.write(folder, name, results, monotonic() - started)
    sys.exit(worst(result.outcome for result in results).exit_code)


def _needs_wheel(stack: str) -> bool:
    path = path_of(ROOT, stack)
    return path.exists() and "wheel:" not in path.read_text(encoding="utf-8", errors="replace")


def _report(line: str) -> None:
    click.echo(line, err=True)
