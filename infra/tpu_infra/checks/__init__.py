"""All checks. They run before the first resource is declared and need no engine and no cloud."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tpu_infra.checks import bucket, compute, machines, network, project, software, tpu
from tpu_infra.checks.context import Context as Context
from tpu_infra.cost import Estimate
from tpu_infra.names import MADE_FOR, MARK, Names, mark_of
from tpu_infra.settings import StackSettings
from tpu_infra.settings.base import UNSET, Problem, SettingsError
from tpu_infra.settings.machines import Backend
from tpu_infra.settings.parse import STAND_IN

Check = Callable[[StackSettings, Context], Iterator[Problem]]
Warn = Callable[[StackSettings, Context], Iterator[str]]

# In the order in which their problems are reported.
_MODULES: Final = (project, tpu, compute, machines, network, bucket, software)
_DID_YOU_MEAN: Final = re.compile(r"Did you mean (\S+)\?")


CHECKS: Final[tuple[Check, ...]] = tuple(
    function
    for module in _MODULES
    for name, function in vars(module).items()
    # One that a module imports from another is in that other's list.
    if name.startswith("check_") and function.__module__ == module.__name__
)
"""Every `check_…` of the modules, in the order of the source: writing one is enough."""
OF_BUCKET: Final[tuple[Check, ...]] = (
    bucket.problems_alone,
    *(
        check
        for check in CHECKS
        if check.__module__ == bucket.__name__
        or check in (project.check_project, project.check_bucket_name, project.check_grants)
    ),
)
"""The checks of a bucket that has no TPU with it."""
WARNINGS: Final[tuple[Warn, ...]] = (
    tpu.warn_about_node,
    tpu.warn_about_ai_zones,
    software.warn_about_versions,
    software.warn_about_packages,
    tpu.warn_about_slices,
    tpu.warn_about_flex_start,
    network.warn_about_network,
    tpu.warn_about_unlisted,
    tpu.warn_about_unverified,
    compute.warn_about_compute,
    software.warn_about_locks,
    machines.warn_about_limits,
    project.warn_about_grants,
)
"""The first are those that end a deployment if they are true."""


@dataclass(frozen=True)
class Checked:
    """Settings that have passed their checks, and what is made from them is called.

    Attributes:
        settings: as the stack file has them.
        context: what the checks looked at.
    """

    settings: StackSettings
    context: Context

    @property
    def backend(self) -> Backend:
        """What runs the trainer's steps."""
        return compute.backend_of(self.settings, self.context)

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the trainer is started with besides its TPU, data and model directory."""
        return software.trainer_arguments(self.settings, self.context)

    @property
    def names(self) -> Names:
        """The names of the resources."""
        return self.context.names

    @property
    def labels(self) -> dict[str, str]:
        """The labels of everything that can have labels."""
        own = {"managed-by": "pulumi", "tpu-stack": self.context.stack}
        return {**self.settings.labels, **own}

    @property
    def marked_labels(self) -> dict[str, str]:
        """The labels of what another stack could create under the same name."""
        return {**self.labels, MARK: mark_of(self.context.stack)}

    @property
    def marked_description(self) -> str:
        """The same mark, for resources without labels."""
        return f"{MADE_FOR}{self.context.stack} ({mark_of(self.context.stack)})"


@dataclass(frozen=True)
class CheckedStack(Checked):
    """A stack that has passed all checks: what its components are made from.

    Attributes:
        wheel: the training wheel to upload.
        data: the data set's files, by their names below `data/` in the bucket.
        job: the job's folder below `jobs/` in the bucket.
        trainer_tensorflow: the TensorFlow that the trainer runs with.
        tpu_software: the runtime of a TPU VM, the TensorFlow version of a classic node, or the
            image of a machine of Compute Engine.
        wheels: the list of wheels that has what the package index lacks; None if it lacks nothing.
        cost: of the stack as it is set.
        warnings: what is allowed and may not be intended.
    """

    wheel: Path
    data: Mapping[str, Path]
    job: str
    trainer_tensorflow: str
    tpu_software: str
    wheels: str | None
    cost: Estimate
    warnings: tuple[str, ...]


def find_problems(
    settings: StackSettings, context: Context, run: Iterable[Check] = CHECKS
) -> list[Problem]:
    """Return every problem with the settings."""
    return [problem for check in run for problem in check(settings, context)]


def with_checks(
    error: SettingsError,
    context: Callable[[StackSettings], Context],
    run: Iterable[Check] = CHECKS,
) -> SettingsError:
    """Return an error with what the checks say of those settings that could be read.

    What a setting that could not be read may have made right, or wrong, is left out: whatever is
    said with its name, or of a setting of its group that is not set.
    """
    if not isinstance(error.rest, StackSettings):
        return error
    meant = {name for each in error.problems for name in _DID_YOU_MEAN.findall(each.cure)}
    unread = {STAND_IN, *meant, *(each.setting for each in error.problems)}
    groups = {_group(each) for each in error.problems if each.value is not UNSET}
    found = [
        problem
        for problem in find_problems(error.rest, context(error.rest), run)
        if not (problem.value is UNSET and _group(problem) in groups)
        and not any(name in str(problem) for name in unread)
    ]
    return SettingsError(error.stack, [*error.problems, *found])


def _group(problem: Problem) -> str:
    return problem.setting.rpartition(".")[0]


def find_warnings(settings: StackSettings, context: Context) -> list[str]:
    """Return what is allowed and may not be intended, for settings without problems."""
    return [warning for warn in WARNINGS for warning in warn(settings, context)]


def ensure_valid(settings: StackSettings, context: Context) -> CheckedStack:
    """Run every check.

    Raises:
        SettingsError: with all problems at once.
    """
    problems = find_problems(settings, context)
    wheel = software.find_wheel(settings, context.root)
    tensorflow = software.trainer_tensorflow(settings, context)
    runtime = software.tpu_software(settings, context)
    if problems or wheel is None or tensorflow is None or runtime is None:
        raise SettingsError(context.stack, problems)
    return CheckedStack(
        settings,
        context,
        wheel,
        software.data_files(settings, context.root),
        software.job_name(settings, context.root),
        tensorflow,
        runtime,
        software.wheels_of(settings, context),
        context.cost_of(settings),
        tuple(find_warnings(settings, context)),
    )
