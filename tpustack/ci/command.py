"""`tpustack ci`: the commands that the workflows call."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic

import click

from infra.settings.parse import stack_path
from tpustack import options
from tpustack.ci import inert, markdown, posts, requests, settings, touched
from tpustack.ci import output as results
from tpustack.ci import policies as rules
from tpustack.ci.checkout import as_it_was
from tpustack.ci.checks import require_backend
from tpustack.ci.deploy import Deployment
from tpustack.ci.deploy import deploy as run_deploy
from tpustack.ci.drift import drift as run_drift
from tpustack.ci.job import Job
from tpustack.ci.limits import limits
from tpustack.ci.outcome import worst
from tpustack.ci.preview import Preview
from tpustack.ci.preview import preview as run_preview
from tpustack.ci.result import Result
from tpustack.ci.sweep import destroy as run_destroy
from tpustack.ci.sweep import sweep as run_sweep
from tpustack.ci.sweep import sweep_orphans
from tpustack.cloud.google import Google
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.errors import UsageError
from tpustack.project import root
from tpustack.stacks import wheel
from tpustack.stacks.files import path_of

_STACKS = click.option(
    "--stack",
    "-s",
    "stacks",
    shell_complete=options.stacks,
    multiple=True,
    help="A stack; may be repeated.",
)
_REQUEST = click.option("--request", type=click.IntRange(1), help="The stack pr-N of request N.")
_POLICIES = click.option(
    "--policies-of",
    "policies",
    metavar="REVISION",
    help="Ask the rules of this revision: the target branch, before the change.",
)
_REFRESH = click.option("--refresh", is_flag=True, help="Look for changes made by hand, too.")


@click.group("ci")
def command() -> None:
    """Preview, deploy, look for drift and sweep, in a pipeline or on a laptop.

    Exit codes: 0 nothing changes, 3 changes, 4 drift, 5 policy violation, 1 failure, 2 wrong
    command line. The pipeline's stacks are in stacks/pipeline.yaml.
    """


@command.command("preview")
@click.option("--base", help="Compare with this revision, such as origin/main.")
@_STACKS
@_REQUEST
@click.option(
    "--reviewed",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the request's plans; what goes beyond them is a failure.",
)
@_POLICIES
@_REFRESH
@posts.OUTPUT
def preview(
    base: str | None,
    stacks: tuple[str, ...],
    request: int | None,
    reviewed: Path | None,
    policies: str | None,
    refresh: bool,
    output: Path,
) -> None:
    """Preview the stacks that a change touches, side by side, and keep their plans.

    With --base, the rules of that revision are asked, not those of the change. With --base and
    --stack: those of these stacks that it touches.
    """
    chosen = _chosen(stacks, request)
    if not chosen and base is None:
        raise UsageError("nothing says what to preview. Use --base, --stack or --request")
    if base is not None and request is None:
        known = settings.load(root()).stacks
        changed = touched.touched(touched.changed_files(root(), base), known)
        chosen = [stack for stack in changed if not chosen or stack in chosen]
    policies = policies or base
    how = Preview(base, refresh, reviewed, rules.note(root(), policies))
    _run("preview", output, chosen, lambda job: run_preview(job, chosen, how), policies)


@command.command("deploy")
@_STACKS
@_REQUEST
@click.option(
    "--branch", help="With --request: its branch; the stack is swept when the branch is gone."
)
@click.option(
    "--plans",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the reviewed plans; nothing beyond them is done.",
)
@_POLICIES
@_REFRESH
@posts.OUTPUT
def deploy(
    stacks: tuple[str, ...],
    request: int | None,
    branch: str | None,
    plans: Path | None,
    policies: str | None,
    refresh: bool,
    output: Path,
) -> None:
    """Deploy stacks one after the other, in the order of stacks/pipeline.yaml."""
    pipeline = settings.load(root())
    if (request is None) != (branch is None):
        raise UsageError("--request and --branch need each other")
    settings.require_listed(stacks, pipeline)
    chosen = _chosen(stacks, request)
    tags = None
    if branch is not None and pipeline.pull_requests is not None:
        tags = requests.tags(branch, pipeline.pull_requests, requests.now())
    order = list(pipeline.stacks)
    ordered = sorted(chosen, key=lambda each: order.index(each) if each in order else len(order))
    how = Deployment(plans, refresh, tags)
    stacks = tuple(ordered or order)
    _run("deploy", output, stacks, lambda job: run_deploy(job, stacks, how), policies)


@command.command("drift")
@_STACKS
@posts.OUTPUT
def drift(stacks: tuple[str, ...], output: Path) -> None:
    """Find what was changed by hand. Writes neither the state nor the cloud."""
    chosen = _chosen(stacks, None) or list(settings.load(root()).stacks)
    _run("drift", output, [], lambda job: run_drift(job, chosen))


@command.command("sweep")
@click.option("--remote", default="origin", show_default=True, help="Whose branches count.")
@click.option(
    "--remove-orphans", is_flag=True, help="Delete resources of stacks that have no state."
)
@posts.OUTPUT
def sweep(remote: str, remove_orphans: bool, output: Path) -> None:
    """Remove the stacks of requests whose branch is gone or whose time is up.

    Names the resources that carry such a stack's labels but are in no state.
    """
    branches = touched.branches(root(), remote)
    requested = settings.load(root()).pull_requests

    def work(job: Job) -> Iterator[Result]:
        before, now = job.backend.stacks(), requests.now()
        yield from run_sweep(job, branches, now)
        if requested:
            project = requested.project
            yield from sweep_orphans(job, Google(), project, now, before, remove=remove_orphans)

    _run("sweep", output, [], work)


@command.command("destroy")
@options.stack("The stack.", required=True)
@click.option("--confirm", required=True, help="Its name again.")
@click.option("--delete-data", is_flag=True, help="Buckets with forceDestroy, too, and their data.")
@posts.OUTPUT
def destroy(stack: str, confirm: str, delete_data: bool, output: Path) -> None:
    """Delete everything of a stack of the pipeline, except what is protected."""
    if stack != confirm:
        raise UsageError(f"--confirm {confirm!r} is not the name of the stack, {stack!r}")
    if not requests.NAME.fullmatch(stack):
        # Where there is no environment of this name, its approval is nobody's.
        settings.require_listed([stack], settings.load(root()))
    _run("destroy", output, [], lambda job: [run_destroy(job, stack, delete_data=delete_data)])


for each in (limits, posts.comment, posts.guard, posts.issue, posts.plans):
    command.add_command(each)


def _chosen(stacks: tuple[str, ...], request: int | None) -> list[str]:
    for stack in stacks:
        path_of(stack)
    if request is None:
        return list(stacks)
    # A run that can go no further writes no stack file.
    require_backend({})
    return [*stacks, requests.write(root(), request, settings.load(root()).pull_requests)]


def _run(
    name: str,
    folder: Path,
    built: Iterable[str],
    work: Callable[[Job], Iterable[Result]],
    policies: str | None = None,
) -> None:
    """Do the work, print and write its results, and end the process.

    Args:
        name: the command.
        folder: where its files go.
        built: the stacks that need the training wheel.
        work: the work.
        policies: the revision whose rules are asked; None: those of the checkout.
    """
    started = monotonic()
    require_backend({})
    folder.mkdir(parents=True, exist_ok=True)
    if any(_needs_wheel(stack) for stack in built):
        wheel.build()
    environment = toolchain.engine(toolchain.find())
    done = []
    with as_it_was(root()), rules.policies_of(root(), policies) as pack:
        job = Job(Backend(environment, root(), pack), root(), folder, _report)
        for result in work(job):
            done.append(result)
            click.echo(f"{result.stack}: {result.outcome.value}")
            for note in result.notes:
                job.report(f"{result.stack}: {inert.line(note)}")
            for line in result.problem.splitlines():
                job.report(f"{result.stack}: {inert.line(line)}")
    if not done:
        click.echo("No stack is concerned.")
    results.write(folder, name, done, monotonic() - started)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.writelines(markdown.text(name, each) for each in done)
    sys.exit(worst(result.outcome for result in done).exit_code)


def _needs_wheel(stack: str) -> bool:
    path = stack_path(root(), stack)
    return path.exists() and "wheel:" not in path.read_text(encoding="utf-8", errors="replace")


def _report(line: str) -> None:
    click.echo(line, err=True)
