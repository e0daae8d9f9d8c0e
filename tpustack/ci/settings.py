"""stacks/pipeline.yaml: the pipeline's stacks, in the order of deployment."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import Field, ValidationError

from infra.settings.base import Section, Text
from infra.settings.stack_file import Loader
from tpustack.errors import UsageError

FILE = Path("stacks") / "pipeline.yaml"


class PullRequests(Section):
    """Stacks of requests that are labelled for one."""

    like: Text
    """The stack whose settings they get."""
    hours: int = Field(default=72, ge=1, le=24 * 30)
    """Their time to live."""


class PipelineSettings(Section):
    """Everything that the file says."""

    stacks: tuple[Text, ...] = Field(min_length=1)
    """In the order of deployment."""
    pull_requests: PullRequests | None = None
    """Stacks of requests that are labelled for one."""


def load(root: Path) -> PipelineSettings:
    """Return the settings of the pipeline. Raises UsageError with every problem."""
    path = root / FILE
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)
    except FileNotFoundError:
        raise UsageError(
            f"{FILE} is not there. It lists the pipeline's stacks: `stacks: [dev, prod]`"
        ) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{FILE} is no YAML: {' '.join(str(error).split())}") from None
    try:
        return PipelineSettings.model_validate(document)
    except ValidationError as error:
        problems = [
            f"{FILE}: {'.'.join(map(str, details['loc'])) or 'the file'}: {details['msg']}"
            for details in error.errors(include_url=False)
        ]
        raise UsageError("\n".join(problems)) from None
