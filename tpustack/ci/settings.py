"""stacks/pipeline.yaml: the pipeline's stacks, in the order of deployment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from pydantic import Field, ValidationError

from infra.settings.base import Section, Text
from infra.settings.parse import load_yaml, stack_name
from tpustack.errors import UsageError

FILE = Path("stacks") / "pipeline.yaml"
REQUEST = re.compile(r"pr-[1-9][0-9]*")
"""Names of requests' stacks."""


class PullRequests(Section, strict=False):
    """Stacks of requests that are labelled for one."""

    like: Text
    """The stack whose settings they get."""
    project: Text
    """Their Google project, which no other stack has: their code is nobody's but the request's."""
    hours: int = Field(default=72, ge=1, le=24 * 30)
    """Their time to live."""


class PipelineSettings(Section, strict=False):
    """Everything that the file says."""

    stacks: tuple[Text, ...] = Field(min_length=1)
    """In the order of deployment."""
    approval: tuple[Text, ...] = ()
    """Those whose environments must ask somebody."""
    pull_requests: PullRequests | None = None
    """Stacks of requests that are labelled for one."""


def require_listed(stacks: Sequence[str], pipeline: PipelineSettings) -> None:
    """Raise UsageError with all stacks that the pipeline does not deploy."""
    if strange := [stack for stack in stacks if stack not in pipeline.stacks]:
        raise UsageError(
            f"--stack: the pipeline does not deploy {', '.join(strange)}. {FILE} lists "
            f"{', '.join(pipeline.stacks)}; add it there, or run `pulumi up` by hand"
        )


def load(root: Path) -> PipelineSettings:
    """Return the settings of the pipeline. Raises UsageError with every problem."""
    path = root / FILE
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"{FILE} is not there. It lists the pipeline's stacks: `stacks: [dev, prod]`"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{FILE} can't be read: {error}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{FILE} is not valid YAML: {' '.join(str(error).split())}") from None
    try:
        settings = PipelineSettings.model_validate(document)
    except ValidationError as error:
        problems = [
            f"{FILE}: {'.'.join(map(str, details['loc'])) or 'the file'}: {details['msg']}"
            for details in error.errors(include_url=False)
        ]
        raise UsageError("\n".join(problems)) from None
    if settings.pull_requests:
        _require_own_project(root, settings.pull_requests.project)
    return settings


def _require_own_project(root: Path, project: str) -> None:
    """Raise UsageError if a stack that is no request's is in the project of requests' stacks."""
    others = [
        stack_name(path)
        for path in sorted((root / FILE).parent.glob("Pulumi.*.yaml"))
        if not REQUEST.fullmatch(stack_name(path)) and _project_of(path) == project
    ]
    if others:
        raise UsageError(
            f"{FILE}: pullRequests.project: {project!r} is also the project of "
            f"{', '.join(others)}. What a request says is deployed there before anybody has "
            "reviewed it: make a project for requests alone"
        )


def _project_of(path: Path) -> str:
    """Return the project in a stack's file; what is wrong with the file others say."""
    try:
        document = load_yaml(path.read_text(encoding="utf-8"))
        return str(document["config"]["gcp:project"])
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError):
        return ""
