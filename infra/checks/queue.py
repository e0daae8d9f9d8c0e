"""Checks of the queue: settings that need it, and settings that exclude each other in it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import UNSET, Problem, misplaced
from infra.settings.tpu import Architecture, Capacity

_RESERVATION = re.compile(
    r"(projects/[^/]+/locations/[^/]+/reservations/)?[a-z]([-a-z0-9]*[a-z0-9])?"
)


def check_without_queue(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse, without the queue, settings for which Google's provider has no field."""
    tpu = settings.tpu
    if settings.architecture is not Architecture.VM or tpu.queue:
        return
    yield from misplaced(
        {"tpu.bootDiskGib": tpu.boot_disk_gib, "tpu.autocheckpoint": tpu.autocheckpoint},
        "is only for a TPU out of the queue: Google's provider has no field for it",
        "Set tpu.queued: {}, or remove it",
    )


def check_queue(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the request's conditions suit the capacity and the number of slices."""
    tpu, queue = settings.tpu, settings.tpu.queue
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
    if queue.reservation_bound and not queue.reservation:
        yield Problem(
            "tpu.queued.reservationBound",
            True,
            "does not say to which reservation",
            "Set tpu.queued.reservation, or remove it",
        )
    if queue.guaranteed_hours and tpu.capacity is Capacity.FLEX_START:
        yield Problem(
            "tpu.queued.guaranteedHours",
            queue.guaranteed_hours,
            "contradicts tpu.capacity: flex-start, which stays for tpu.queued.runHours",
            "Set tpu.queued.runHours instead",
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


def check_flex_start(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that a TPU for a while says how long, queues, and is of a kind that Google names."""
    tpu = settings.tpu
    hours = tpu.queued.run_hours if tpu.queued else None
    if tpu.capacity is not Capacity.FLEX_START:
        yield from misplaced(
            {"tpu.queued.runHours": hours},
            f"contradicts tpu.capacity: {tpu.capacity.value}, which stays until it is deleted",
            "Set tpu.capacity: flex-start, or remove it",
        )
        return
    if settings.architecture is not Architecture.VM:
        return
    if tpu.queue is None:
        yield Problem(
            "tpu.queued.enabled",
            False,
            "contradicts tpu.capacity: flex-start, which Google has in the queue alone",
            "Remove it",
        )
    elif hours is None:
        yield Problem(
            "tpu.queued.runHours",
            UNSET,
            "is required with tpu.capacity: flex-start",
            "Set after how many hours Google deletes the TPU, at most 168",
        )
    accelerator = context.catalog.accelerator(tpu.accelerator_type)
    if accelerator and not accelerator.flex_start:
        named = {each.family for each in context.catalog.accelerators.values() if each.flex_start}
        yield Problem(
            "tpu.capacity",
            tpu.capacity.value,
            f"is for {' and '.join(sorted(named))}, but tpu.acceleratorType is {accelerator.name}",
            "Use spot, or a type of those",
        )


def warn_about_flex_start(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of a zone in which Google does not name the generation for flex-start."""
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    if settings.tpu.capacity is not Capacity.FLEX_START or accelerator is None:
        return
    for zone in settings.tpu_zones if accelerator.flex_start else ():
        if zone in accelerator.flex_start:
            continue
        named = f"{accelerator.family} ({', '.join(accelerator.flex_start)})"
        yield (
            f'{settings.setting_of(zone)}: "{zone}" is none of those in which Google names '
            f"flex-start for {named}; it may have added some"
        )
