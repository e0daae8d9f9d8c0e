"""The pipeline: its settings in stacks/pipeline.yaml, the stacks of requests, and what git says.

What git is asked for comes from the command line or a workflow's variables, which a request can
influence by the names of its branches. So revisions follow `--end-of-options`, paths follow `--`,
and no shell is involved.
"""

import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from pydantic import Field, ValidationError

from tpu_core.records import replace_file
from tpu_infra.settings import parse
from tpu_infra.settings.base import Section, SettingsError, Text
from tpustack.engine.stack import POLICY
from tpustack.errors import TpustackError, UsageError
from tpustack.project import read_yaml

PIPELINE_FILE = Path("stacks") / "pipeline.yaml"
REQUEST = re.compile(r"pr-[1-9][0-9]*")
"""Names of requests' stacks."""


class PullRequests(Section, strict=False):
    """Stacks of requests that are labelled for one."""

    like: Text
    """The stack whose settings they get."""
    project: Text
    """Their Google project, which no other stack has: their code is not reviewed."""
    hours: int = Field(default=72, ge=1, le=24 * 30)
    """Their time to live."""


class PipelineSettings(Section, strict=False):
    """Everything that the file says."""

    stacks: tuple[Text, ...] = Field(min_length=1)
    """In the order of deployment."""
    approval: tuple[Text, ...] = ()
    """Those whose environments must ask for an approval."""
    pull_requests: PullRequests | None = None
    """Stacks of requests that are labelled for one."""


def require_listed(stacks: Sequence[str], pipeline: PipelineSettings) -> None:
    """Raise UsageError with all stacks that the pipeline does not deploy."""
    if strange := [stack for stack in stacks if stack not in pipeline.stacks]:
        raise UsageError(
            f"--stack: the pipeline doesn't deploy {', '.join(strange)}. {PIPELINE_FILE} lists "
            f"{', '.join(pipeline.stacks)}; add it there, or run `pulumi up` yourself"
        )


def load_pipeline(root: Path) -> PipelineSettings:
    """Return the settings of the pipeline. Raises UsageError with every problem."""
    path = root / PIPELINE_FILE
    if not path.exists():
        raise UsageError(
            f"{PIPELINE_FILE} doesn't exist. It lists the pipeline's stacks: `stacks: [dev, prod]`"
        )
    document = read_yaml(path)
    try:
        settings = PipelineSettings.model_validate(document)
    except ValidationError as error:
        problems = [
            f"{PIPELINE_FILE}: {'.'.join(map(str, details['loc'])) or 'the file'}: {details['msg']}"
            for details in error.errors(include_url=False)
        ]
        raise UsageError("\n".join(problems)) from None
    if settings.pull_requests:
        _require_own_project(root, settings.pull_requests.project)
    return settings


def _require_own_project(root: Path, project: str) -> None:
    """Raise UsageError if a stack that is no request's is in the project of requests' stacks."""
    others = [
        parse.stack_name(path)
        for path in sorted((root / PIPELINE_FILE).parent.glob("Pulumi.*.yaml"))
        if not REQUEST.fullmatch(parse.stack_name(path)) and _project_of(path) == project
    ]
    if others:
        raise UsageError(
            f"{PIPELINE_FILE}: pullRequests.project: {project!r} is also the project of "
            f"{', '.join(others)}. PR stacks run unreviewed code, so give them their own project"
        )


def _project_of(path: Path) -> str:
    """Return the project in a stack's file; empty if it can't be read, which its checks report."""
    try:
        return str(read_yaml(path)["config"]["gcp:project"])
    except (UsageError, KeyError, TypeError):
        return ""


# Stacks of requests: `pr-7` has the settings of another stack, and a time to live.

BRANCH, EXPIRES = "tpustack:branch", "tpustack:expires"


def request_stack(number: int) -> str:
    """Return the name of a request's stack."""
    return f"pr-{number}"


def write_request_stack(root: Path, number: int, how: PullRequests | None) -> str:
    """Write the settings file of a request's stack; return the stack's name.

    It differs from the one it is like in its project and names, and in that nothing of it is kept.
    """
    if how is None:
        raise UsageError(f"{PIPELINE_FILE} has no pullRequests, so there are no PR stacks")
    stack = request_stack(number)
    path = parse.stack_path(root, how.like)
    try:
        parse.load_stack_file(path)
    except SettingsError as error:
        raise UsageError(f"{PIPELINE_FILE}: pullRequests.like: {error}") from None
    document = read_yaml(path)
    # Pulumi reads a setting without its namespace, too.
    written: dict[str, Any] = document["config"]
    config = {key if ":" in key else f"{parse.NAMESPACE}:{key}": written[key] for key in written}
    document["config"] = config
    config["gcp:project"] = how.project
    # Its deployer can't use the key of another environment.
    for key in ("secretsprovider", "encryptedkey"):
        document.pop(key, None)
    config.pop("tpu-stack:namePrefix", None)
    # A pattern has the stack's name in it, and may have the owner's.
    if "tpu-stack:namePattern" not in config:
        config.pop("tpu-stack:owner", None)
    bucket = {**(config.get("tpu-stack:bucket") or {}), "forceDestroy": True, "protect": False}
    bucket.pop("name", None)
    config["tpu-stack:bucket"] = {**bucket, "softDeleteDays": 0}
    config["tpu-stack:labels"] = {**(config.get("tpu-stack:labels") or {}), "request": stack}
    text = yaml.safe_dump(document, sort_keys=False)
    parse.stack_path(root, stack).write_text(text, encoding="utf-8")
    return stack


def request_tags(branch: str, how: PullRequests, now: datetime) -> dict[str, str]:
    """Return the tags that tell the sweeper when the stack may go."""
    expires = now + timedelta(hours=how.hours)
    return {BRANCH: branch, EXPIRES: expires.isoformat(timespec="seconds")}


def tags_are_complete(tags: Mapping[str, str]) -> bool:
    """Return whether a run has noted all of them, which it does before it makes a resource."""
    return BRANCH in tags and EXPIRES in tags


def reason_to_sweep(tags: Mapping[str, str], branches: set[str], now: datetime) -> str:
    """Return why a request's stack must go; empty if it may stay.

    Raises TpustackError if it can't be told.
    """
    if not tags_are_complete(tags):
        return "The run that created it failed before it was done."
    branch, expires = tags[BRANCH], tags[EXPIRES]
    if branch not in branches:
        return f"Its branch `{branch}` was deleted."
    try:
        ends = datetime.fromisoformat(expires).astimezone(timezone.utc)
    except ValueError:
        raise TpustackError(
            f"its tag {EXPIRES} is {expires!r}, which isn't a time, so the stack stays. Delete it "
            "with `tpustack ci destroy`"
        ) from None
    if ends <= now:
        return f"Its lifetime ended at {expires}."
    return ""


def utc_now() -> datetime:
    """Return the current time, with its zone; tests replace it."""
    return datetime.now(timezone.utc)


# What git says of a change.

# All stacks are made of these, in a clone and in a project of `tpustack new`. Other files (docs,
# tests, workflows) change no stack.
_ALL = ("agent/", "core/", "dist/", "infra/", "plugin/", "policy/", "training/")
_ALL_FILES = {"Pulumi.yaml", "__main__.py", str(PIPELINE_FILE)}
# A clone's requirements.txt is for tests.
_CLONES_LOCK, _LOCK = "requirements-deploy.txt", "requirements.txt"


def touched_stacks(root: Path, paths: Iterable[str], stacks: Sequence[str]) -> list[str]:
    """Return those of `stacks` that a change of the files `paths`, relative to `root`, hits."""
    changed = set(paths)
    lock = _CLONES_LOCK if (root / _CLONES_LOCK).exists() else _LOCK
    if changed & {*_ALL_FILES, lock} or any(path.startswith(_ALL) for path in changed):
        return list(stacks)
    return [stack for stack in stacks if f"stacks/Pulumi.{stack}.yaml" in changed]


def changed_files(root: Path, base: str) -> list[str]:
    """Return the files that differ from where the branch left `base`, uncommitted ones included."""
    # Not `base` itself: what others merged in the meantime is no change of this branch.
    merge_base = _git(root, "merge-base", base, "HEAD").strip()
    changed = _git(root, "diff", "--name-only", "--relative", "-z", merge_base, "--", ".")
    new = _git(root, "ls-files", "--others", "--exclude-standard", "-z", "--", ".")
    return [path for path in (changed + new).split("\0") if path]


def file_at(root: Path, base: str, path: str) -> str | None:
    """Return a file as it was where the branch left `base`; None if it was not there."""
    merge_base = _git(root, "merge-base", base, "HEAD").strip()
    if not _git(root, "ls-tree", merge_base, "--", path):
        return None
    return _git(root, "show", f"{merge_base}:./{path}")


def head_commit(root: Path) -> str:
    """Return the commit that is checked out; empty outside git."""
    done = subprocess.run(
        ["git", "rev-parse", "--verify", "--quiet", "HEAD"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def remote_branches(root: Path, remote: str) -> set[str]:
    """Return the branches of a remote repository."""
    lines = _git(root, "ls-remote", "--heads", "--", remote).splitlines()
    if not lines:
        # Every stack of a request would look as if its branch were gone.
        raise TpustackError(f"the remote repository {remote} lists no branches")
    return {line.partition("refs/heads/")[2] for line in lines}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise UsageError(
            f"`git {' '.join(arguments)}` failed: {done.stderr.strip() or 'no answer'}. "
            "Fetch the whole history (in a pipeline: fetch depth 0)"
        )
    return done.stdout


# The policy pack of another revision: a change is judged by the rules that it did not write.

# The rules import what is next to them first (policy/__main__.py).
_ROOMS = ("infra", POLICY)


@contextmanager
def rules_of(root: Path, revision: str | None) -> Iterator[Path | None]:
    """Yield the folder of the policy pack of a revision; None: the one of the checkout."""
    if revision is None:
        yield None
        return
    with TemporaryDirectory(prefix="tpustack-policies-") as folder:
        pack = Path(folder) / POLICY
        names = ("--name-only", "--end-of-options", revision, *_ROOMS)
        if rooms := _git(root, "ls-tree", *names).splitlines():
            command = ["git", "archive", "--format=tar", "--end-of-options", revision, *rooms]
            done = subprocess.run(command, cwd=root, capture_output=True, check=True)
            with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
                archive.extractall(folder, filter="data")
        if pack.is_dir():
            _find_environment(pack / "PulumiPolicy.yaml", root)
        yield pack


def rules_note(root: Path, revision: str | None) -> str:
    """Return what a reader should know where a change touches the rules; empty if it does not."""
    names = ("--name-only", "--end-of-options", revision or "", "--", POLICY)
    if revision is None or not _git(root, "diff", *names):
        return ""
    return f"Policies are those of `{revision}`, because this change also touches `{POLICY}/`."


def _find_environment(definition: Path, root: Path) -> None:
    """Lead the pack to the checkout's virtual environment, which it names relative to itself."""
    document = read_yaml(definition)
    options = document["runtime"]["options"]
    options["virtualenv"] = str((root / POLICY / options["virtualenv"]).resolve())
    definition.write_text(yaml.safe_dump(document), encoding="utf-8")


# What the engine notes in a stack file about its secrets provider; each state has its own copy.
_ENGINES = ("encryptionsalt", "encryptedkey")


@contextmanager
def restored_checkout(root: Path) -> Iterator[None]:
    """Take out of the stack files what the engine writes into them within the block.

    A file with any other change stays.
    """
    before = {path: path.read_bytes() for path in (root / "stacks").glob("Pulumi.*.yaml")}
    try:
        yield
    finally:
        for path, content in before.items():
            if path.exists() and path.read_bytes() != content:
                _put_back(path, content)


def _put_back(path: Path, content: bytes) -> None:
    # Whatever else was changed belongs to the person who edits the file while a run takes place.
    then, now = _parsed(content), _parsed(path.read_bytes())
    if then is None or now is None:
        return
    if {key: value for key, value in now.items() if key in then or key not in _ENGINES} == then:
        replace_file(path.resolve(), content)


def _parsed(content: bytes) -> dict[str, Any] | None:
    try:
        document = parse.load_yaml(content.decode("utf-8"))
    except (UnicodeDecodeError, yaml.YAMLError):
        return None
    return document if isinstance(document, dict) else None
