"""`tpustack ci`: the commands that the workflows call.

The commands that touch stacks write their results to a folder, which the workflow keeps as an
artifact. A later job, with a token that may write comments, reads it: no job has both the request's
own code and that token. So everything that is read from such a folder is treated as hostile.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from tpu_infra.catalog import Catalog
from tpu_infra.names import names_of
from tpu_infra.settings import parse
from tpustack import console, errors
from tpustack.ci import deployment, drift, forge, pipeline, result, sweep
from tpustack.cloud.google import Google
from tpustack.engine import named, toolchain
from tpustack.engine.backend import Backend
from tpustack.project import build_wheel, root
from tpustack.stacks import check, load, path_of

_STACKS = console.stack("A stack.", "the pipeline's", several=True)
_REQUEST = click.option("--request", type=click.IntRange(1), help="The PR stack pr-N.")
_POLICIES = click.option(
    *("--policies-of", "policies"),
    metavar="REVISION",
    help="Use the policies of this revision, such as the target branch.",
)
_REFRESH = click.option("--refresh", is_flag=True, help="Refresh first, to find manual changes.")
_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
_OUTPUT = click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("build/ci"),
    show_default=True,
    help="Folder for STACK.md, result.json and plans.",
)
# Added to every text that a request's own code has produced.
_FORGEABLE = (
    "This pull request's own code made the preview. The plan that counts is made after the merge, "
    "and shown where you approve the deployment."
)


@click.group("ci")
def command() -> None:
    """Preview, deploy, detect drift and sweep, in a pipeline or on a laptop.

    Exit codes: 0 no changes, 1 failure, 2 usage error, 3 changes, 4 drift, 5 policy violation.
    stacks/pipeline.yaml lists the pipeline's stacks.
    """


@command.command("preview", short_help="Preview the stacks that a change touches.")
@click.option("--base", help="Compare with this revision, such as origin/main.")
@console.stack("A stack.", f"those --base touches, else {console.SELECTED}", several=True)
@_REQUEST
@click.option(
    "--reviewed",
    type=_FOLDER,
    help="Folder of the pull request's plans; changes beyond them are a failure.",
)
@_POLICIES
@_REFRESH
@_OUTPUT
@toolchain.needed()
def _preview(
    base: str | None,
    stacks: tuple[str, ...],
    request: int | None,
    reviewed: Path | None,
    policies: str | None,
    refresh: bool,
    output: Path,
) -> None:
    """Preview the stacks that a change touches, in parallel, and keep their plans.

    --base uses that revision's policies instead of the change's. With --stack, it previews only
    those of the named stacks that the change touches.
    """
    chosen = _chosen(stacks, request)
    if not chosen and base is None:
        # Pulumi asks the backend.
        result.require_backend({})
        chosen = [named(None)]
    if base is not None and request is None:
        files = pipeline.changed_files(root(), base)
        changed = pipeline.touched_stacks(root(), files, pipeline.load_pipeline(root()).stacks)
        chosen = [stack for stack in changed if not chosen or stack in chosen]
    policies = policies or base
    how = deployment.Preview(base, refresh, reviewed, pipeline.rules_note(root(), policies))
    _run("preview", output, chosen, lambda run: deployment.preview(run, chosen, how), policies)


@command.command("deploy", short_help="Deploy stacks in the pipeline's order.")
@_STACKS
@_REQUEST
@click.option(
    "--branch", help="With --request: its branch. The PR stack is swept when that is gone."
)
@click.option(
    "--plans", type=_FOLDER, help="Folder of the reviewed plans; changes beyond them are refused."
)
@_POLICIES
@_REFRESH
@_OUTPUT
@toolchain.needed()
def _deploy(
    stacks: tuple[str, ...],
    request: int | None,
    branch: str | None,
    plans: Path | None,
    policies: str | None,
    refresh: bool,
    output: Path,
) -> None:
    """Deploy stacks in the order of stacks/pipeline.yaml."""
    settings = pipeline.load_pipeline(root())
    if (request is None) != (branch is None):
        raise errors.UsageError("use --request and --branch together")
    pipeline.require_listed(stacks, settings)
    chosen = _chosen(stacks, request)
    tags = None
    if branch is not None and settings.pull_requests is not None:
        tags = pipeline.request_tags(branch, settings.pull_requests, pipeline.utc_now())
    order = list(settings.stacks)
    ordered = sorted(chosen, key=lambda each: order.index(each) if each in order else len(order))
    how = deployment.Deployment(plans, refresh, tags)
    stacks = tuple(ordered or order)
    _run("deploy", output, stacks, lambda run: deployment.deploy(run, stacks, how), policies)


@command.command("drift", short_help="Find manual changes.")
@_STACKS
@_OUTPUT
@toolchain.needed()
def _drift(stacks: tuple[str, ...], output: Path) -> None:
    """Detect manual changes. Writes neither the state nor the cloud."""
    chosen = _chosen(stacks, None) or list(pipeline.load_pipeline(root()).stacks)
    _run("drift", output, [], lambda run: drift.drift(run, chosen))


@command.command("sweep", short_help="Delete the stacks of closed pull requests.")
@click.option("--remote", default="origin", show_default=True, help="The remote to compare with.")
@click.option(
    "--remove-orphans", is_flag=True, help="Also delete labeled resources that no state lists."
)
@_OUTPUT
@toolchain.needed()
def _sweep(remote: str, remove_orphans: bool, output: Path) -> None:
    """Destroy PR stacks whose branch is gone or whose time is up.

    Also lists resources with such a stack's labels that no state lists.
    """
    branches = pipeline.remote_branches(root(), remote)
    requested = pipeline.load_pipeline(root()).pull_requests

    def work(run: result.Run) -> Iterator[result.Result]:
        before, now = run.backend.stacks(), pipeline.utc_now()
        yield from sweep.sweep(run, branches, now)
        if requested:
            yield from sweep.sweep_orphans(
                run, Google(), requested.project, now, before, remove=remove_orphans
            )

    _run("sweep", output, [], work)


@command.command("destroy", short_help="Delete a stack of the pipeline.")
@console.stack("The stack.")
@click.option("--confirm", required=True, help="The stack's name.")
@click.option("--delete-data", is_flag=True, help="Also delete buckets with forceDestroy.")
@_OUTPUT
@toolchain.needed()
def _destroy(stack: str | None, confirm: str, delete_data: bool, output: Path) -> None:
    """Destroy a stack of the pipeline, except protected resources."""
    # The file of a PR stack is gone with its branch.
    stack = stack or named(None)
    if stack != confirm:
        raise errors.UsageError(f"--confirm {confirm!r} is not the name of the stack, {stack!r}")
    if not pipeline.REQUEST.fullmatch(stack):
        # An environment that is not listed has no approval.
        pipeline.require_listed([stack], pipeline.load_pipeline(root()))
    _run("destroy", output, [], lambda run: [sweep.destroy(run, stack, delete_data=delete_data)])


def _chosen(stacks: tuple[str, ...], request: int | None) -> list[str]:
    # Refuses a name that can't be a stack's before it becomes a part of a path.
    for stack in stacks:
        path_of(stack)
    if request is None:
        return list(stacks)
    # Before anything is written.
    result.require_backend({})
    requested = pipeline.load_pipeline(root()).pull_requests
    return [*stacks, pipeline.write_request_stack(root(), request, requested)]


def _run(
    name: str,
    folder: Path,
    built: Iterable[str],
    work: Callable[[result.Run], Iterable[result.Result]],
    policies: str | None = None,
) -> None:
    """Do the work, print and write its results, and end the process.

    The exit code is that of the worst result, so that a workflow needs no parser.

    Args:
        name: the command, for the files and their headings.
        folder: where its files go.
        built: the stacks that need the training wheel.
        work: does it; each result is printed as soon as it is there.
        policies: the revision whose rules are asked; None: those of the checkout.
    """
    started = time.monotonic()
    # Asked before the wheel and the engine, which may take minutes to build.
    result.require_backend({})
    folder.mkdir(parents=True, exist_ok=True)
    if any(_needs_wheel(stack) for stack in built):
        build_wheel()
    if toolchain.lacking():
        found = (problem for stack in built for problem in check(stack, Catalog()).problems)
        errors.refuse([*found])
    environment = toolchain.engine(toolchain.find())
    done = []
    with pipeline.restored_checkout(root()), pipeline.rules_of(root(), policies) as pack:
        run = result.Run(Backend(environment, root(), pack), root(), folder, console.say)
        for one in work(run):
            done.append(one)
            click.echo(f"{one.stack}: {one.outcome.value}")
            for each in (*one.notes, *one.problem.splitlines()):
                run.report(f"{one.stack}: {console.line(each)}")
    if not done:
        click.echo("No stack is affected.")
    result.write_results(folder, name, done, time.monotonic() - started)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.writelines(result.markdown(name, each) for each in done)
    sys.exit(result.worst(one.outcome for one in done).exit_code)


def _needs_wheel(stack: str) -> bool:
    # Without reading the file as YAML: what is wrong with it is reported by the preview, in words.
    path = parse.stack_path(root(), stack)
    return path.exists() and "wheel:" not in path.read_text(encoding="utf-8", errors="replace")


@command.command("comment", short_help="Post the results in the pull request.")
@click.option("--request", type=click.IntRange(1), help="The pull request's number.")
@click.option(
    "--open", "every", is_flag=True, help="Post the previews of all open merge requests (GitLab)."
)
@click.option(
    "--of",
    type=click.Choice(["preview", "plan", "deploy", "request"]),
    default="preview",
    show_default=True,
    help="What to post: the pull request's preview, the plan or deployment after the merge, or "
    "the deployment of the PR stack.",
)
@click.option("--stack", "-s", help="The stack; results of others are refused.")
@_OUTPUT
def _comment(request: int | None, every: bool, of: str, stack: str | None, output: Path) -> None:
    """Post results to the pull request, in place of older ones."""
    if every is (request is not None):
        raise errors.UsageError("nowhere to post. Use --request or --open")
    if request is None:
        _comment_on_all()
        return
    if of == "request":
        stack = pipeline.request_stack(request)
    if stack is None:
        raise errors.UsageError("whose results to post is not set. Use --stack")
    name = {"plan": "preview", "request": "deploy"}.get(of, of)
    notes = [_FORGEABLE] if of == "preview" else []
    texts = result.read_results(output, name, re.compile(re.escape(stack)), notes)
    forge.post_comments(forge.forge_of(), request, texts.by_stack)


def _comment_on_all() -> None:
    """Post what the jobs of requests have left; one that is wrong stops none of the others."""
    own, problems = forge.forge_of(), []
    for request, preview in own.opened():
        try:
            found = preview()
            for stack, archive in found.archives.items() if found else ():
                texts = _preview_texts(archive, stack)
                forge.post_comments(own, request, texts)
                click.echo(f"merge request {request}: {', '.join(texts)}")
        except errors.TpustackError as error:
            problems.append(f"merge request {request}: {console.line(str(error))}")
    if problems:
        raise errors.UsageError("\n".join(problems))


def _preview_texts(archive: bytes, stack: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        result.unpack_results(archive, Path(folder))
        only = re.compile(re.escape(stack))
        return result.read_results(Path(folder), "preview", only, notes=[_FORGEABLE]).by_stack


@command.command("issue", short_help="Open, update or close the issues about drift.")
@_OUTPUT
def _issue(output: Path) -> None:
    """Open, update or close drift issues, after `drift`."""
    texts = result.read_results(output, "drift")
    forge.update_issues(forge.forge_of(), texts.by_stack, texts.drifted)


@command.command("plans", short_help="Fetch the plans of the merged pull request.")
@click.option("--commit", required=True, help="The merged commit.")
@_OUTPUT
def _plans(commit: str, output: Path) -> None:
    """Fetch the plans that a commit's pull request showed."""
    reviewed = forge.forge_of().reviewed(commit)
    if reviewed is None:
        raise errors.UsageError(
            f"commit {commit} has no pull request with plans, so nothing was reviewed. Start the "
            "deployment manually: it makes plans and asks for approval"
        )
    output.mkdir(parents=True, exist_ok=True)
    stacks = [
        stack
        for stack, pack in reviewed.archives.items()
        if result.unpack_plan(pack, output, stack)
    ]
    click.echo(f"plans of pull request {reviewed.request}: {', '.join(sorted(stacks)) or 'none'}")
    # The workflow's later steps post to this request.
    if outputs := os.environ.get("GITHUB_OUTPUT"):
        with open(outputs, "a", encoding="utf-8") as file:
            file.write(f"request={reviewed.request}\n")


@command.command("guard", short_help="Stop if an environment lacks its approval.")
def _guard() -> None:
    """Fail if an environment that needs approval would ask for none."""
    own, lacking = forge.forge_of(), []
    for environment in pipeline.load_pipeline(root()).approval:
        try:
            lacks, weak = own.unprotected(environment)
        except forge.AccessDenied as refusal:
            click.echo(f"warning: can't check who approves {environment}: {refusal}", err=True)
            continue
        for each in weak:
            click.echo(f"warning: the environment {environment} {each}", err=True)
        lacking += [f"the environment {environment} {each}" for each in lacks]
    if lacking:
        raise errors.UsageError("; ".join(lacking) + ". stacks/pipeline.yaml requires approval")


@command.command("limits", short_help="Delete a stack's TPUs that are past their limits.")
@console.stack("The stack.")
def _limits(stack: str | None) -> None:
    """Delete a stack's TPUs past limits.timeToLiveHours.

    On Compute Engine also what is left of a slice that lost a machine for good.

    Run it on a schedule, because the VM that does it may be preempted, stopped or hung.
    """
    from tpu_agent.limits import LimitEnforcer
    from tpu_core import google, tpu
    from tpustack.recovery.machines import end_machines, require_label

    stack = named(stack)
    settings = load(stack)

    def say(text: str) -> None:
        click.echo(console.line(text))

    if settings.is_compute:
        end_machines(Google(), settings, stack, say)
        return
    hours, names = settings.limits.time_to_live_hours, names_of(settings, stack)
    if hours is None:
        click.echo(f"{stack} has no limits.timeToLiveHours, so there is nothing to do.")
        return
    further = settings.tpu_zones[1:]
    place = tpu.Place(settings.project, settings.zone, names.bucket, lambda: further)
    client = google.Client(Google().exchange)
    # The agent's own code decides, so that both judge alike. Only the machine itself can tell
    # whether nothing trains, so the idle limit is left to it.
    enforcer = LimitEnforcer(place, client, lambda: True, time.time, say)
    own, failed = list[str](), list[str]()
    for name in names.tpus(settings.tpu.slices):
        try:
            there, status, node = tpu.look_up(place, client.call, name)
            if status == 200:
                require_label(name, there.zone, stack, node)
            own.append(name)
        except (OSError, errors.TpustackError) as error:
            failed.append(str(error))
    limited = {"tpus": own, "timeToLiveHours": hours, "recovery": {}}
    try:
        enforcer.look(limited | ({"request": names.tpu} if settings.tpu.queue else {}))
    except OSError as error:
        failed.append(str(error))
    if failed:
        raise errors.TpustackError("; ".join(failed))
