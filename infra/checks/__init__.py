"""Everything that is checked before the first resource is declared, without engine or cloud."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from infra.checks.bucket import check_bucket, check_encryption, check_lifecycle, check_soft_delete
from infra.checks.budget import check_budget
from infra.checks.context import Context
from infra.checks.disks import check_data_disks
from infra.checks.machines import check_image, check_machine_type
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
from infra.checks.training import check_data, check_job, check_wheel
from infra.checks.versions import (
    check_node_version,
    check_runtime,
    check_trainer_version,
    warn_about_versions,
)
from infra.checks.vm import check_managed, check_ops_agent, check_shielded, check_vm_capacity
from infra.settings import StackSettings
from infra.settings.problems import Problem, SettingsError

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
    """Every problem with the settings."""
    return [problem for check in CHECKS for problem in check(settings, context)]


def find_warnings(settings: StackSettings, context: Context) -> list[str]:
    """What is allowed, and may not be what somebody meant; of settings without problems."""
    return [*warn_about_versions(settings, context), *warn_about_slices(settings, context)]


def ensure_valid(settings: StackSettings, context: Context) -> list[str]:
    """Raises SettingsError with every problem; returns warnings if there is none."""
    if problems := find_problems(settings, context):
        raise SettingsError(context.stack, problems)
    return find_warnings(settings, context)
