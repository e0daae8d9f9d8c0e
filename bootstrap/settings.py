"""The settings of the bootstrap stack as one typed object, or every problem with them at once."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails

from infra.settings.base import Section, StrEnum, Text
from infra.settings.problems import UNSET, Problem

NAMESPACE: Final = "tpu-stack-bootstrap"
PROJECT_KEY: Final = "gcp:project"
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[a-z][a-z0-9-]{1,17}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_ROLE = re.compile(r"((projects|organizations)/[^/]+/)?roles/[A-Za-z0-9_.]+")
_BILLING = re.compile(r"[0-9A-F]{6}-[0-9A-F]{6}-[0-9A-F]{6}")


class Forge(StrEnum):
    """Where the repository and its pipeline are."""

    GITHUB = "github"
    GITLAB = "gitlab"


class BudgetSettings(Section):
    """A budget over the projects."""

    billing_account: Text
    """The billing account, like 012345-6789AB-CDEF01."""
    dollars: int = Field(ge=1)
    """US dollars a month; mails at 50, 90 and 100 %."""


class BootstrapSettings(Section):
    """Everything that the stack file says."""

    project: Text
    """Project of bucket, key, accounts and identity pool."""
    region: Text
    """Region of the state bucket and the key."""
    repository: Text
    """The repository whose pipeline is let in, OWNER/NAME."""
    forge: Forge = Forge.GITHUB
    """Where the repository is."""
    branch: Text = "main"
    """The branch whose pipeline may deploy; * for every one (only in a project for the stacks of
    requests: whoever can push may then deploy there).
    """
    projects: tuple[Text, ...] = ()
    """The stacks' projects; this one if there are none."""
    deployer_roles: tuple[Text, ...] = ()
    """Further roles of the deployer, for stacks that need them."""
    name_prefix: Text = "tpu-stack-ci"
    """What the names of all resources begin with."""
    state_bucket: Text | None = None
    """Name of the state bucket. PROJECT-PREFIX-state if not set."""
    budget: BudgetSettings | None = None
    """A budget over the projects."""

    @property
    def all_projects(self) -> tuple[str, ...]:
        """The projects that the pipeline's accounts work in."""
        return self.projects or (self.project,)

    @property
    def bucket(self) -> str:
        """The state bucket's name."""
        project = self.project.replace(":", "-").replace(".", "-")
        return self.state_bucket or f"{project}-{self.name_prefix}-state"


class BootstrapError(Exception):
    """The settings can't be used. The message names every problem."""

    def __init__(self, stack: str, problems: list[Problem]) -> None:
        self.problems = problems
        lines = [f"{len(problems)} problem{'s' * (len(problems) != 1)} in Pulumi.{stack}.yaml:"]
        lines += [f"  - {problem}" for problem in problems]
        super().__init__("\n".join([*lines, "Nothing was created or changed."]))


def parse(config: Mapping[str, object], stack: str) -> BootstrapSettings:
    """Parse `config`, whose keys are those of the stack file. Raises BootstrapError."""
    values = {
        key.partition(":")[2]: value
        for key, value in config.items()
        if key.startswith(f"{NAMESPACE}:")
    }
    if config.get(PROJECT_KEY):
        values["project"] = config[PROJECT_KEY]
    try:
        settings = BootstrapSettings.model_validate(values)
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors(include_url=False)]
        raise BootstrapError(stack, problems) from None
    if problems := list(_problems(settings)):
        raise BootstrapError(stack, problems)
    return settings


def structured(value: str) -> object:
    """Return a setting as the engine got it: groups and lists are JSON, all else is plain text."""
    return json.loads(value) if value.startswith(("{", "[")) else value


def _problem(error: ErrorDetails) -> Problem:
    """Return the problem that the types found."""
    name = ".".join(map(str, error["loc"]))
    value: object = UNSET if error["type"] == "missing" else error["input"]
    return Problem(
        PROJECT_KEY if name == "project" else name,
        value,
        f"is wrong: {error['msg']}",
        "docs/gitops.md describes every setting",
    )


def _problems(settings: BootstrapSettings) -> list[Problem]:
    """Return the problems that the types can't express."""
    found = [
        Problem(name, value, f"is no {what}", f"Use one like {like}")
        for name, value, form, what, like in (
            (PROJECT_KEY, settings.project, _PROJECT, "project id", "my-project-pipeline"),
            ("region", settings.region, _REGION, "region", "europe-west4"),
            ("repository", settings.repository, _REPOSITORY, "repository", "owner/name"),
            ("namePrefix", settings.name_prefix, _PREFIX, "prefix of 3 to 19 letters", "tpu-ci"),
            ("stateBucket", settings.bucket, _BUCKET, "bucket name", "my-project-state"),
        )
        if not form.fullmatch(value)
    ]
    found += [
        Problem(f"projects[{number}]", project, "is no project id", "Use the id, not the number")
        for number, project in enumerate(settings.projects)
        if not _PROJECT.fullmatch(project)
    ]
    found += [
        Problem(f"deployerRoles[{number}]", role, "is no role", "Use one like roles/pubsub.admin")
        for number, role in enumerate(settings.deployer_roles)
        if not _ROLE.fullmatch(role)
    ]
    budget = settings.budget
    if budget and not _BILLING.fullmatch(budget.billing_account):
        found.append(
            Problem(
                "budget.billingAccount",
                budget.billing_account,
                "is no billing account",
                "`gcloud billing accounts list` shows its id",
            )
        )
    return found
