"""What an environment's accounts may do: the lists of its stack, and nothing beside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bootstrap.settings import BootstrapError, BootstrapSettings, EnvironmentSettings
from infra.components.identity import permissions_of_role
from infra.deployer import READ, objects_condition, permissions_of, sweeper
from infra.settings import StackSettings
from infra.settings.base import UNSET, Problem, SettingsError
from infra.settings.parse import load_stack_file, stack_path

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
        limited: whether TPUs are deleted when their time is up.
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
            of_stack = _settings(root, stack, environment)
        except SettingsError as error:
            problems += error.problems
            continue
        problems += _problems(name, stack, environment, of_stack)
        found[name] = _of(environment, of_stack, stack)
    if problems:
        # Requests' stacks are like another environment's.
        raise BootstrapError("pipeline", list({str(each): each for each in problems}.values()))
    return found


def _settings(root: Path, stack: str, environment: EnvironmentSettings) -> StackSettings:
    """Return the settings of an environment's stack; those of requests delete their buckets."""
    settings = load_stack_file(stack_path(root, stack))
    if not environment.like:
        return settings
    bucket = settings.bucket.model_copy(update={"force_destroy": True})
    return settings.model_copy(update={"bucket": bucket})


def _problems(
    name: str, stack: str, environment: EnvironmentSettings, settings: StackSettings
) -> Iterator[Problem]:
    file = f"stacks/Pulumi.{stack}.yaml"
    if settings.project != environment.project and not environment.like:
        why = f"is not the project of the environment {name}, {environment.project}"
        yield Problem(f"{file}: gcp:project", settings.project, why, "Write the same in both")
    if _needs_role(settings) and not (settings.limits.role or "").startswith(LIMITS_ROLE):
        why = "makes the stack change roles, and who may do that may do everything"
        cure = f"Write `role: {LIMITS_ROLE}` there: bootstrap makes this role"
        yield Problem(f"{file}: limits.role", settings.limits.role or UNSET, why, cure)


def _of(environment: EnvironmentSettings, settings: StackSettings, stack: str) -> Rights:
    permissions = permissions_of(settings)
    everything = {*permissions.of_project(), *(sweeper() if environment.like else ())}
    grants = {name: of for name, of in permissions.grants.items() if name not in UNLIMITED}
    machines: list[str] = []
    role = settings.limits.role or ""
    if _needs_role(settings):
        machines = permissions_of_role(creates=settings.recovery.enabled)
        grants[_ON_PROJECT] += (f"projects/{environment.project}/roles/{role}",)
    return Rights(
        objects=objects_condition(settings, stack),
        looks=tuple(permissions.of_project(READ)),
        deploys=tuple(sorted(everything - grants.keys())),
        grants=grants,
        machines=tuple(machines),
        role=role,
        limited=settings.limits.time_to_live_hours is not None,
    )


def _needs_role(settings: StackSettings) -> bool:
    return settings.limits.any or settings.recovery.enabled
