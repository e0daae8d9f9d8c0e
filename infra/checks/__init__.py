"""All checks. They run before the first resource is declared and need no engine and no cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from infra.checks.bucket import check_bucket, check_encryption, check_lifecycle, check_soft_delete
from infra.checks.budget import check_budget
from infra.checks.context import Context
from infra.checks.disks import check_data_disks
from infra.checks.network import check_cidr, check_network, check_room, check_subnet
from infra.checks.project import check_bucket_name, check_prefix, check_project
from infra.checks.provider import check_provider
from infra.checks.queue import check_queue, check_without_queue
from infra.checks.tpu import check_accelerator, check_capacity, check_form, check_zone
from infra.checks.tpu_vm import (
    check_not_for_nodes,
    check_scopes,
    check_tags,
    warn_about_slices,
)
from infra.checks.training import check_data, check_job, check_wheel, find_wheel
from infra.checks.versions import (
    check_node_version,
    check_runtime,
    check_trainer_version,
    tpu_software,
    trainer_tensorflow,
    warn_about_versions,
)
from infra.checks.vm import (
    check_image,
    check_machine_type,
    check_managed,
    check_ops_agent,
    check_shielded,
    check_vm_capacity,
)
from infra.settings import StackSettings
from infra.settings.problems import Problem, SettingsError


@dataclass(frozen=True)
class CheckedStack:
    """What the checks have made sure of, as values that are always there.

    Attributes:
        wheel: the training wheel to upload.
        trainer_tensorflow: the TensorFlow that the trainer runs with.
        tpu_software: the runtime of a TPU VM, or the TensorFlow version of a classic node.
        budget_amount: what the budget allows for a month; None without a budget.
        warnings: what is allowed and may not be intended.
    """

    wheel: Path
    trainer_tensorflow: str
    tpu_software: str
    budget_amount: int | None
    warnings: tuple[str, ...]


Check = Callable[[StackSettings, Context], Iterator[Problem]]

CHECKS: Final[tuple[Check, ...]] = (
    check_project,
    check_prefix,
    check_zone,
    check_accelerator,
    check_form,
    check_provider,
    check_capacity,
    check_not_for_nodes,
    check_without_queue,
    check_queue,
    check_data_disks,
    check_tags,
    check_scopes,
    check_runtime,
    check_node_version,
    check_trainer_version,
    check_network,
    check_subnet,
    check_room,
    check_cidr,
    check_machine_type,
    check_image,
    check_vm_capacity,
    check_shielded,
    check_managed,
    check_ops_agent,
    check_bucket,
    check_soft_delete,
    check_lifecycle,
    check_encryption,
    check_budget,
    check_bucket_name,
    check_wheel,
    check_data,
    check_job,
)


def find_problems(settings: StackSettings, context: Context) -> list[Problem]:
    """Return every problem with the settings."""
    return [problem for check in CHECKS for problem in check(settings, context)]


def find_warnings(settings: StackSettings, context: Context) -> list[str]:
    """Return what is allowed and may not be intended, for settings without problems."""
    return [*warn_about_versions(settings, context), *warn_about_slices(settings, context)]


def ensure_valid(settings: StackSettings, context: Context) -> CheckedStack:
    """Run every check.

    Raises:
        SettingsError: with all problems at once.
    """
    problems = find_problems(settings, context)
    wheel = find_wheel(settings, context.root)
    tensorflow = trainer_tensorflow(settings, context)
    software = tpu_software(settings)
    if problems or wheel is None or tensorflow is None or software is None:
        raise SettingsError(context.stack, problems)
    amount = settings.budget.amount if settings.budget else None
    warnings = tuple(find_warnings(settings, context))
    return CheckedStack(wheel, tensorflow, software, amount, warnings)
