"""`tpustack ci`: the commands that the workflows call."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import monotonic

import click

from infra.names import names_of
from infra.settings.stack_file import stack_path
from infra.startup.agent.google import Json, Place, parse
from infra.startup.agent.limits import LimitEnforcer
from tpustack import console, project
from tpustack.ci import forge, pipeline, result
from tpustack.ci import pipeline as requests
from tpustack.ci import pipeline as rules
from tpustack.ci import pipeline as settings
from tpustack.ci import result as inert
from tpustack.ci import result as markdown
from tpustack.ci import result as results
from tpustack.ci.deployment import Deployment, Preview
from tpustack.ci.deployment import deploy as run_deploy
from tpustack.ci.deployment import preview as run_preview
from tpustack.ci.drift import drift as run_drift
from tpustack.ci.forge import AccessDenied
from tpustack.ci.pipeline import restored_checkout
from tpustack.ci.result import Result, Run, require_backend, worst
from tpustack.ci.sweep import destroy as run_destroy
from tpustack.ci.sweep import sweep as run_sweep
from tpustack.ci.sweep import sweep_orphans
from tpustack.cloud.google import Google
from tpustack.engine import toolchain
from tpustack.engine.backend import Backend
from tpustack.errors import TpustackError, UsageError
from tpustack.project import root
from tpustack.stacks import load, path_of, require_file

_STACKS = click.option(
    "--stack",
    "-s",
    "stacks",
    shell_complete=console.stacks,
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
@_OUTPUT
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
        known = settings.load_pipeline(root()).stacks
        changed = pipeline.touched_stacks(pipeline.changed_files(root(), base), known)
        chosen = [stack for stack in changed if not chosen or stack in chosen]
    policies = policies or base
    how = Preview(base, refresh, reviewed, rules.rules_note(root(), policies))
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
@_OUTPUT
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
    pipeline = settings.load_pipeline(root())
    if (request is None) != (branch is None):
        raise UsageError("--request and --branch need each other")
    settings.require_listed(stacks, pipeline)
    chosen = _chosen(stacks, request)
    tags = None
    if branch is not None and pipeline.pull_requests is not None:
        tags = requests.request_tags(branch, pipeline.pull_requests, requests.utc_now())
    order = list(pipeline.stacks)
    ordered = sorted(chosen, key=lambda each: order.index(each) if each in order else len(order))
    how = Deployment(plans, refresh, tags)
    stacks = tuple(ordered or order)
    _run("deploy", output, stacks, lambda job: run_deploy(job, stacks, how), policies)


@command.command("drift")
@_STACKS
@_OUTPUT
def drift(stacks: tuple[str, ...], output: Path) -> None:
    """Find what was changed by hand. Writes neither the state nor the cloud."""
    chosen = _chosen(stacks, None) or list(settings.load_pipeline(root()).stacks)
    _run("drift", output, [], lambda job: run_drift(job, chosen))


@command.command("sweep")
@click.option("--remote", default="origin", show_default=True, help="Whose branches count.")
@click.option(
    "--remove-orphans", is_flag=True, help="Delete resources of stacks that have no state."
)
@_OUTPUT
def sweep(remote: str, remove_orphans: bool, output: Path) -> None:
    """Remove the stacks of requests whose branch is gone or whose time is up.

    Names the resources that carry such a stack's labels but are in no state.
    """
    branches = pipeline.remote_branches(root(), remote)
    requested = settings.load_pipeline(root()).pull_requests

    def work(job: Run) -> Iterator[Result]:
        before, now = job.backend.stacks(), requests.utc_now()
        yield from run_sweep(job, branches, now)
        if requested:
            project = requested.project
            yield from sweep_orphans(job, Google(), project, now, before, remove=remove_orphans)

    _run("sweep", output, [], work)


@command.command("destroy")
@console.stack("The stack.", required=True)
@click.option("--confirm", required=True, help="Its name again.")
@click.option("--delete-data", is_flag=True, help="Buckets with forceDestroy, too, and their data.")
@_OUTPUT
def destroy(stack: str, confirm: str, delete_data: bool, output: Path) -> None:
    """Delete everything of a stack of the pipeline, except what is protected."""
    if stack != confirm:
        raise UsageError(f"--confirm {confirm!r} is not the name of the stack, {stack!r}")
    if not requests.NAME.fullmatch(stack):
        # Where there is no environment of this name, its approval is nobody's.
        settings.require_listed([stack], settings.load_pipeline(root()))
    _run("destroy", output, [], lambda job: [run_destroy(job, stack, delete_data=delete_data)])


for each in (limits, comment, guard, issue, plans):
    command.add_command(each)


def _chosen(stacks: tuple[str, ...], request: int | None) -> list[str]:
    for stack in stacks:
        path_of(stack)
    if request is None:
        return list(stacks)
    # A run that can go no further writes no stack file.
    require_backend({})
    return [
        *stacks,
        requests.write_request_stack(root(), request, settings.load_pipeline(root()).pull_requests),
    ]


def _run(
    name: str,
    folder: Path,
    built: Iterable[str],
    work: Callable[[Run], Iterable[Result]],
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
        project.build_wheel()
    environment = toolchain.engine(toolchain.find())
    done = []
    with restored_checkout(root()), rules.rules_of(root(), policies) as pack:
        job = Run(Backend(environment, root(), pack), root(), folder, _report)
        for result in work(job):
            done.append(result)
            click.echo(f"{result.stack}: {result.outcome.value}")
            for note in result.notes:
                job.report(f"{result.stack}: {inert.line(note)}")
            for line in result.problem.splitlines():
                job.report(f"{result.stack}: {inert.line(line)}")
    if not done:
        click.echo("No stack is concerned.")
    results.write_results(folder, name, done, monotonic() - started)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.writelines(markdown.markdown(name, each) for each in done)
    sys.exit(worst(result.outcome for result in done).exit_code)


def _needs_wheel(stack: str) -> bool:
    path = stack_path(root(), stack)
    return path.exists() and "wheel:" not in path.read_text(encoding="utf-8", errors="replace")


def _report(line: str) -> None:
    click.echo(line, err=True)


# --- The commands of `tpustack ci` that read and write requests and issues.

_OUTPUT = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/ci"),
    show_default=True,
    help="Folder for STACK.md, result.json and plans.",
)

# It approves nothing, however it looks.
_FORGEABLE = (
    "The request's own code made this preview. The plan that counts is made after the merge, and "
    "shown where the deployment is approved."
)


@click.command("comment")
@click.option("--request", type=click.IntRange(1), help="The request's number.")
@click.option(
    "--open", "every", is_flag=True, help="Post the previews of all open requests (GitLab)."
)
@click.option(
    "--of",
    type=click.Choice(["preview", "plan", "deploy", "request"]),
    default="preview",
    show_default=True,
    help="What is posted: the request's preview, the plan or the deployment after the merge, or "
    "the deployment of the request's own stack; nothing else is.",
)
@click.option("--stack", "-s", help="The stack; results of another one are refused.")
@_OUTPUT
def comment(request: int | None, every: bool, of: str, stack: str | None, output: Path) -> None:
    """Post the results of a preview or deployment to the request, in place of older ones."""
    if every is (request is not None):
        raise UsageError("nothing says where to post. Use one of --request and --open")
    if request is None:
        _comment_on_all()
        return
    if of == "request":
        stack = pipeline.request_stack(request)
    if stack is None:
        raise UsageError("nothing says which stack's results these must be. Use --stack")
    command = {"plan": "preview", "request": "deploy"}.get(of, of)
    notes = [_FORGEABLE] if of == "preview" else []
    texts = results.read_results(output, command, re.compile(re.escape(stack)), notes)
    forge.post_comments(forge.forge_of(), request, texts.by_stack)


def _comment_on_all() -> None:
    """Post what the jobs of requests have left; one that is wrong stops none of the others."""
    there, problems = forge.forge_of(), []
    for request, preview in there.opened():
        try:
            found = preview()
            for stack, archive in found.archives.items() if found else ():
                texts = _previewed(archive, stack)
                forge.post_comments(there, request, texts)
                click.echo(f"request {request}: {', '.join(texts)}")
        except TpustackError as error:
            problems.append(f"request {request}: {result.line(str(error))}")
    if problems:
        raise UsageError("\n".join(problems))


def _previewed(archive: bytes, stack: str) -> dict[str, str]:
    """Return the text about a stack that its preview has left."""
    with tempfile.TemporaryDirectory() as folder:
        results.unpack_results(archive, Path(folder))
        only = re.compile(re.escape(stack))
        return results.read_results(Path(folder), "preview", only, notes=[_FORGEABLE]).by_stack


@click.command("issue")
@_OUTPUT
def issue(output: Path) -> None:
    """Open, update or close the issues about drift, after `drift`."""
    texts = results.read_results(output, "drift")
    forge.update_issues(forge.forge_of(), texts.by_stack, texts.drifted)


@click.command("plans")
@click.option("--commit", required=True, help="The merged commit.")
@_OUTPUT
def plans(commit: str, output: Path) -> None:
    """Fetch the plans that were reviewed in the request that brought a commit."""
    reviewed = forge.forge_of().reviewed(commit)
    if reviewed is None:
        raise UsageError(
            f"commit {commit} came by no request with plans, so nothing was reviewed. Start the "
            "deployment by hand: it makes plans and asks for approval"
        )
    output.mkdir(parents=True, exist_ok=True)
    of = [results.unpack_plan(archive, output, at) for at, archive in reviewed.archives.items()]
    stacks = ", ".join(sorted(filter(None, of)))
    click.echo(f"plans of request {reviewed.request}: {stacks or 'none'}")
    if told := os.environ.get("GITHUB_OUTPUT"):
        with open(told, "a", encoding="utf-8") as file:
            file.write(f"request={reviewed.request}\n")


@click.command("guard")
def guard() -> None:
    """Refuse to go on if an environment that needs approval would ask nobody."""
    there, lacking = forge.forge_of(), []
    for environment in pipeline.load_pipeline(root()).approval:
        try:
            lacks, weak = there.unprotected(environment)
        except AccessDenied as refusal:
            click.echo(f"warning: nobody can tell who approves {environment}: {refusal}", err=True)
            continue
        for each in weak:
            click.echo(f"warning: the environment {environment} {each}", err=True)
        lacking += [f"the environment {environment} {each}" for each in lacks]
    if lacking:
        raise UsageError("; ".join(lacking) + ". stacks/pipeline.yaml wants its approval")


# --- `tpustack ci limits`: ends what costs when the machine that keeps a stack's limits is gone.


@click.command("limits")
@console.stack("The stack.", required=True)
def limits(stack: str) -> None:
    """Delete a stack's TPUs whose time is up (limits.timeToLiveHours), as its machine does.

    For a schedule: that machine may be preempted, off or hung, and its TPU keeps costing.
    """
    require_file(stack)
    settings, google = load(stack), Google()
    hours, names = settings.limits.time_to_live_hours, names_of(settings, stack)
    if hours is None:
        click.echo(f"{stack} has no limits.timeToLiveHours: nothing to do.")
        return

    def call(method: str, url: str, body: str | None) -> tuple[int, Json]:
        headers = {"Content-Type": "text/plain"} if body else {}
        try:
            status, _, content = google.exchange(method, url, headers, (body or "").encode())
        except TpustackError as error:
            raise OSError(str(error)) from None
        return status, parse(content)

    further = settings.tpu_zones[1:]
    place = Place(settings.project, settings.zone, names.bucket, lambda: further)
    # Only the machine itself can tell whether nothing trains.
    enforcer = LimitEnforcer(place, call, lambda: True, time.time, _say)
    limited = {"tpus": names.tpus(settings.tpu.slices), "timeToLiveHours": hours, "recovery": {}}
    try:
        enforcer.look(limited | ({"request": names.tpu} if settings.tpu.queue else {}))
    except OSError as error:
        raise TpustackError(str(error)) from None


def _say(text: str) -> None:
    click.echo(result.line(text))
