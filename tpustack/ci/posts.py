"""The commands of `tpustack ci` that read and write requests and issues."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import click

from tpustack.ci import forge, forges, inert, requests, settings
from tpustack.ci import output as results
from tpustack.ci.api import Refused
from tpustack.errors import TpustackError, UsageError
from tpustack.project import root

OUTPUT = click.option(
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
@OUTPUT
def comment(request: int | None, every: bool, of: str, stack: str | None, output: Path) -> None:
    """Post the results of a preview or deployment to the request, in place of older ones."""
    if every is (request is not None):
        raise UsageError("nothing says where to post. Use one of --request and --open")
    if request is None:
        _comment_on_all()
        return
    if of == "request":
        stack = requests.name(request)
    if stack is None:
        raise UsageError("nothing says which stack's results these must be. Use --stack")
    command = {"plan": "preview", "request": "deploy"}.get(of, of)
    notes = [_FORGEABLE] if of == "preview" else []
    texts = results.read(output, command, re.compile(re.escape(stack)), notes)
    forge.comment(forges.forge_of(), request, texts.by_stack)


def _comment_on_all() -> None:
    """Post what the jobs of requests have left; one that is wrong stops none of the others."""
    there, problems = forges.forge_of(), []
    for request, preview in there.opened():
        try:
            found = preview()
            for stack, archive in found.archives.items() if found else ():
                texts = _previewed(archive, stack)
                forge.comment(there, request, texts)
                click.echo(f"request {request}: {', '.join(texts)}")
        except TpustackError as error:
            problems.append(f"request {request}: {inert.line(str(error))}")
    if problems:
        raise UsageError("\n".join(problems))


def _previewed(archive: bytes, stack: str) -> dict[str, str]:
    """Return the text about a stack that its preview has left."""
    with tempfile.TemporaryDirectory() as folder:
        results.unpack_results(archive, Path(folder))
        only = re.compile(re.escape(stack))
        return results.read(Path(folder), "preview", only, notes=[_FORGEABLE]).by_stack


@click.command("issue")
@OUTPUT
def issue(output: Path) -> None:
    """Open, update or close the issues about drift, after `drift`."""
    texts = results.read(output, "drift")
    forge.issue(forges.forge_of(), texts.by_stack, texts.drifted)


@click.command("plans")
@click.option("--commit", required=True, help="The merged commit.")
@OUTPUT
def plans(commit: str, output: Path) -> None:
    """Fetch the plans that were reviewed in the request that brought a commit."""
    reviewed = forges.forge_of().reviewed(commit)
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
    there, lacking = forges.forge_of(), []
    for environment in settings.load(root()).approval:
        try:
            lacks, weak = there.unprotected(environment)
        except Refused as refusal:
            click.echo(f"warning: nobody can tell who approves {environment}: {refusal}", err=True)
            continue
        for each in weak:
            click.echo(f"warning: the environment {environment} {each}", err=True)
        lacking += [f"the environment {environment} {each}" for each in lacks]
    if lacking:
        raise UsageError("; ".join(lacking) + ". stacks/pipeline.yaml wants its approval")
