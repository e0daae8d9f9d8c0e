"""The settings of the bootstrap stack as one typed object, or every problem with them at once."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from tpu_core.words import plural
from tpu_infra.deployer import READ, objects_condition, permissions_of, permissions_of_role, sweeper
from tpu_infra.settings import StackSettings, base
from tpu_infra.settings.base import UNSET, Problem, Section, Text
from tpu_infra.settings.parse import PROJECT_KEY, dotted, load_stack_file, problem_of, stack_path

NAMESPACE: Final = "tpu-stack-bootstrap"
DEPLOYS: Final = "deploy"
PREVIEWS: Final = "preview"
OLD_VERSIONS: Final = 100
"""Of each state file (Pulumi writes one at every step) so many are kept when it is overwritten."""
SOFT_DELETE: Final = 30 * 24 * 3600
"""For so many seconds Cloud Storage keeps what was deleted, old versions too. Who may write objects
can't shorten that. https://docs.cloud.google.com/storage/docs/soft-delete (2026-11-24)
"""
_PROJECT = re.compile(r"([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9_.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"(?!gcp-)[a-z][a-z0-9-]{1,17}[a-z0-9]")
_PREFIXES = "prefix of 3 to 19 lower-case letters, digits and hyphens (gcp- is Google's own)"
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_ENVIRONMENT = re.compile(r"[a-z][a-z0-9-]*[a-z0-9]")
_LONGEST_ACCOUNT = 30
_ROLE = re.compile(r"((projects|organizations)/[^/]+/)?roles/[A-Za-z0-9_.]+")


# What the file of this repository says (Pulumi.pipeline.yaml).
_EXAMPLES = (
    *("my-project-pipeline", "my-project-dev", "my-project-staging", "my-project-prod"),
    *("my-project-requests", "my-organization/my-repository", 1),
)


class Forge(base.StrEnum):
    """Where the repository and its pipeline are."""

    GITHUB = "github"
    GITLAB = "gitlab"


class EnvironmentSettings(Section, strict=False):
    """One environment: a project, and who may do what in it."""

    project: Text
    """Project of its stack, which has its name, and of no other environment's."""
    like: Text | None = None
    """The stack that requests' stacks are modelled on. With it this is the environment of these
    stacks: anyone who can push may deploy there.
    """
    previews_requests: bool = False
    """Whether requests are previewed on its stack: anyone who can push may then read what its
    previewer reads, the state and its secrets included.
    """
    deployer_roles: tuple[Text, ...] = ()
    """Further roles of the deployer, for a stack that needs them."""


class BootstrapSettings(Section, strict=False):
    """Everything that the stack file says."""

    project: Text
    """Project of buckets, keys, accounts and identity pool; no stack's."""
    region: Text
    """Region of the state buckets and the keys."""
    repository: Text
    """The repository whose pipeline is let in, OWNER/NAME."""
    repository_id: int = Field(ge=1)
    """Its number, which stays its own when it is renamed or deleted."""
    owner_id: int = Field(ge=1)
    """Its owner's number (on GitLab: the namespace's)."""
    forge: Forge = Forge.GITHUB
    """Where the repository is."""
    branch: Text = "main"
    """The branch whose pipeline may deploy."""
    environments: Mapping[Text, EnvironmentSettings] = Field(min_length=1)
    """The environments by the names that they have on the forge."""
    name_prefix: Text = "tpu-stack-ci"
    """What the names of all resources begin with."""
    state_bucket: Text | None = None
    """Name of the bucket of bootstrap's own state, and beginning of those of the environments.
    PROJECT-PREFIX-state if not set.
    """

    @property
    def all_projects(self) -> tuple[str, ...]:
        """The projects that the pipeline's accounts work in."""
        return tuple(each.project for each in self.environments.values())

    @property
    def bucket(self) -> str:
        """The name of the bucket of bootstrap's own state."""
        project = self.project.replace(":", "-").replace(".", "-")
        return self.state_bucket or f"{project}-{self.name_prefix}-state"

    def bucket_of(self, environment: str) -> str:
        """Return the name of an environment's state bucket."""
        return f"{self.bucket}-{environment}"

    def account_of(self, environment: str, does: str) -> str:
        """Return the part before the @ of the account that `deploys` or `previews`."""
        return f"{self.name_prefix}-{environment}-{does}"


class BootstrapError(Exception):
    """The settings can't be used. The message names every problem."""

    def __init__(self, stack: str, problems: list[Problem]) -> None:
        self.problems = problems
        lines = [f"{plural(len(problems), 'problem')} in Pulumi.{stack}.yaml:"]
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
    if secret := [name for name, value in values.items() if base.holds_secret(value)]:
        raise BootstrapError(stack, [base.secret_problem(dotted((name,))) for name in secret])
    try:
        settings = BootstrapSettings.model_validate(values)
    except ValidationError as error:
        found = [problem_of(each, BootstrapSettings) for each in error.errors(include_url=False)]
        raise BootstrapError(stack, found) from None
    if problems := list(_problems(settings)):
        raise BootstrapError(stack, problems)
    return settings


def _problems(settings: BootstrapSettings) -> Iterator[Problem]:
    """Yield the problems that the types can't express."""
    for name, value, form, what, like in (
        (PROJECT_KEY, settings.project, _PROJECT, "project id", "my-project-pipeline"),
        ("region", settings.region, _REGION, "region", "europe-west4"),
        ("repository", settings.repository, _REPOSITORY, "repository", "owner/name"),
        ("namePrefix", settings.name_prefix, _PREFIX, _PREFIXES, "tpu-ci"),
        ("stateBucket", settings.bucket, _BUCKET, "bucket name", "my-project-state"),
    ):
        if not form.fullmatch(value):
            yield Problem(name, value, f"isn't a {what}", f"Use one like {like}")
    named: dict[str, object] = {PROJECT_KEY: settings.project, "repository": settings.repository}
    named |= {
        f"environments.{name}.project": e.project for name, e in settings.environments.items()
    }
    named |= {"repositoryId": settings.repository_id, "ownerId": settings.owner_id}
    for name, example in named.items():
        if example in _EXAMPLES:
            yield Problem(name, example, "is the example's placeholder", "Use your own")
    for name, environment in settings.environments.items():
        yield from _of_environment(settings, name, environment)


def _of_environment(
    settings: BootstrapSettings, name: str, environment: EnvironmentSettings
) -> Iterator[Problem]:
    setting = f"environments.{name}"
    longest = max(len(settings.account_of(name, does)) for does in (DEPLOYS, PREVIEWS))
    if not _ENVIRONMENT.fullmatch(name):
        yield Problem(setting, name, "isn't valid", "Use lower-case letters, digits and hyphens")
    elif longest > _LONGEST_ACCOUNT:
        why = f"makes an account's name {longest} characters long with namePrefix; the limit is 30"
        yield Problem(setting, name, why, "Shorten one of the two")
    elif not _BUCKET.fullmatch(settings.bucket_of(name)):
        yield Problem("stateBucket", settings.bucket_of(name), "isn't a bucket name", "Shorten it")
    project, at = environment.project, f"{setting}.project"
    if not _PROJECT.fullmatch(project):
        yield Problem(at, project, "isn't a project id", "Use the id, not the number")
    elif project == settings.project:
        why = "has the pipeline's accounts and keys, which its deployer could use"
        yield Problem(at, project, why, "Give the environment its own project")
    elif settings.all_projects.count(project) > 1:
        why = "is also another environment's, so each deployer could reach the other"
        yield Problem(at, project, why, "Give each environment its own project")
    for number, role in enumerate(environment.deployer_roles):
        if not _ROLE.fullmatch(role):
            at = f"{setting}.deployerRoles[{number}]"
            yield Problem(at, role, "isn't a role", "Use one like roles/pubsub.admin")


# --- What an environment's accounts may do: the lists of its stack, and nothing else

LIMITS_ROLE: Final = "tpu_stack_limits"
"""The id, or its beginning, of the role that bootstrap makes for stacks with limits."""
UNLIMITED: Final = ("pubsub.topics.setIamPolicy",)
"""Permissions to grant that no condition can limit to some roles, since their service is not among
those of "IAM API attributes": it refuses every grant under such a condition.
https://docs.cloud.google.com/iam/docs/conditions-attribute-reference (2026-11-24)
"""
_ON_PROJECT: Final = "resourcemanager.projects.setIamPolicy"


@dataclass(frozen=True)
class Rights:
    """The rights in an environment's project.

    Attributes:
        objects: the condition under which the deployer replaces and deletes objects, or none.
        looks: the previewer's permissions.
        deploys: the deployer's, but for those in `grants`.
        grants: the deployer's permissions to grant, each with the roles that it may grant by it.
        machines: those of the machines' role; none if they need no such role.
        role: the id of the machines' role (`limits.role`).
        limited: whether TPUs are deleted when their time is up, or what is left of a slice.
    """

    objects: str
    looks: tuple[str, ...]
    deploys: tuple[str, ...]
    grants: Mapping[str, tuple[str, ...]]
    machines: tuple[str, ...]
    role: str
    limited: bool


def rights_of(settings: BootstrapSettings, root: Path) -> Mapping[str, Rights]:
    """Return the rights in each environment, by the stack files below `root`.

    Raises BootstrapError with every problem.
    """
    problems: list[Problem] = []
    found = {}
    for name, environment in settings.environments.items():
        stack = environment.like or name
        try:
            of_stack = _stack_settings(root, stack, environment)
        except base.SettingsError as error:
            problems += error.problems
            continue
        problems += _problems_of_stack(name, stack, environment, of_stack)
        found[name] = _rights(environment, of_stack, stack)
    if problems:
        # Requests' stacks are like another environment's.
        raise BootstrapError("pipeline", list({str(each): each for each in problems}.values()))
    return found


def _stack_settings(root: Path, stack: str, environment: EnvironmentSettings) -> StackSettings:
    """Return the settings of an environment's stack; those of requests delete their buckets."""
    settings = load_stack_file(stack_path(root, stack))
    if not environment.like:
        return settings
    bucket = settings.bucket.model_copy(update={"force_destroy": True})
    return settings.model_copy(update={"bucket": bucket})


def _problems_of_stack(
    name: str, stack: str, environment: EnvironmentSettings, settings: StackSettings
) -> Iterator[Problem]:
    file = f"stacks/Pulumi.{stack}.yaml"
    if settings.project != environment.project and not environment.like:
        why = f"isn't the project of environment {name}, {environment.project}"
        yield Problem(f"{file}: gcp:project", settings.project, why, "Use the same in both")
    if settings.keeps_limits and not (settings.limits.role or "").startswith(LIMITS_ROLE):
        why = "requires the right to change roles, which includes every other right"
        cure = f"Set `role: {LIMITS_ROLE}`, which bootstrap creates"
        yield Problem(f"{file}: limits.role", settings.limits.role or UNSET, why, cure)


def _rights(environment: EnvironmentSettings, settings: StackSettings, stack: str) -> Rights:
    permissions = permissions_of(settings)
    everything = {*permissions.of_project(), *(sweeper() if environment.like else ())}
    grants = {name: of for name, of in permissions.grants.items() if name not in UNLIMITED}
    machines: list[str] = []
    role = settings.limits.role or ""
    if settings.keeps_limits:
        machines = permissions_of_role(settings)
        grants[_ON_PROJECT] += (f"projects/{environment.project}/roles/{role}",)
    return Rights(
        objects=objects_condition(settings, stack),
        looks=tuple(permissions.of_project(READ)),
        deploys=tuple(sorted(everything - grants.keys())),
        grants=grants,
        machines=tuple(machines),
        role=role,
        # A topology of one machine counts, too: there is never anything left of it.
        limited=settings.limits.time_to_live_hours is not None
        or (settings.is_compute and settings.tpu.topology is not None),
    )
