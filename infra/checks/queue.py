"""Checks of the queue: settings that need it, and settings that exclude each other in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import Problem, misplaced
from infra.settings.tpu import Architecture, Capacity

_RESERVATION = re.compile(
    r"(projects/[^/]+/locations/[^/]+/reservations/)?[a-z]([-a-z0-9]*[a-z0-9])?"
)


def check_without_queue(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse, without the queue, settings for which Google's provider has no field."""
    tpu = settings.tpu
    if settings.architecture is not Architecture.VM or tpu.queued:
        return
    yield from misplaced(
        {"tpu.bootDiskGib": tpu.boot_disk_gib, "tpu.autocheckpoint": tpu.autocheckpoint},
        "is only for a TPU out of the queue: Google's provider has no field for it",
        "Set tpu.queued: {}, or remove it",
    )


def check_queue(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the request's conditions suit the capacity and the number of slices."""
    tpu, queue = settings.tpu, settings.tpu.queued
    if settings.architecture is not Architecture.VM or queue is None:
        return
    if queue.reservation and not _RESERVATION.fullmatch(queue.reservation):
        yield Problem(
            "tpu.queued.reservation",
            queue.reservation,
            "is no reservation's name",
            "Use NAME, or projects/PROJECT/locations/ZONE/reservations/NAME",
        )
    if queue.reservation and tpu.capacity is not Capacity.RESERVED:
        yield Problem(
            "tpu.queued.reservation",
            queue.reservation,
            f"contradicts tpu.capacity: {tpu.capacity.value}",
            "Set tpu.capacity: reserved, or remove it",
        )
    if queue.guaranteed_hours and tpu.capacity in (Capacity.SPOT, Capacity.PREEMPTIBLE):
        yield Problem(
            "tpu.queued.guaranteedHours",
            queue.guaranteed_hours,
            f"contradicts tpu.capacity: {tpu.capacity.value}, which Google may take away",
            "Set tpu.capacity: on-demand or reserved, or remove it",
        )
    if queue.workload and tpu.slices == 1:
        yield Problem(
            "tpu.queued.workload",
            queue.workload.value,
            "is for several slices, but there is one",
            "Set tpu.slices, or remove it",
        )
    if tpu.timeouts.create_minutes is not None:
        yield Problem(
            "tpu.timeouts.createMinutes",
            tpu.timeouts.create_minutes,
            "is for a TPU that does not queue",
            "Set tpu.queued.waitMinutes instead",
        )
