"""Checks of the zones in which a TPU out of the queue may be beside the stack's own."""

from __future__ import annotations

from collections.abc import Iterator

from infra.catalog import unlisted
from infra.checks.context import Context, one_of
from infra.settings import StackSettings
from infra.settings.problems import Problem, misplaced
from infra.settings.tpu import Architecture

_SETTING = "tpu.queued.fallbackZones"
AI = "-ai"
"""What the names of zones for accelerators alone have, such as us-central1-ai1a."""
SWITCH_ON = (
    "gcloud beta compute preview-features update ai-zones-visibility --activation-status=enabled "
    "--rollout-plan=fast-rollout --project={}"
)
"""Shows AI zones to a project (docs.cloud.google.com/compute/docs/regions-zones/manage-ai-zones,
read 2026-11-24).
"""


def check_fallback_zones(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the TPU can be in each zone, and that nothing ties it to one."""
    queued = settings.tpu.queued
    if queued is None or settings.architecture is not Architecture.VM:
        return
    zones = list(queued.fallback_zones)
    if not zones:
        yield from misplaced(
            {"tpu.queued.zoneMinutes": queued.zone_minutes},
            "is for a TPU that may be in several zones",
            "Set tpu.queued.fallbackZones, or remove it",
        )
        return
    wrong = [f"{zone} {why}" for zone, why in _wrong(settings, context)]
    if wrong:
        good = _good(settings, context)
        cure = f"Use {one_of(good)}" if good else "Remove it: there is no other zone"
        yield Problem(_SETTING, zones, f"can't be used: {'; '.join(wrong)}", cure)
    if tie := _tie(settings):
        yield Problem(_SETTING, zones, *tie)


def warn_about_ai_zones(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn of zones that Google hides until a project switches them on."""
    for zone in settings.tpu_zones:
        if AI in zone:
            yield (
                f"{settings.setting_of(zone)}: {zone} is an AI zone, which Google hides from a "
                f"project until `{SWITCH_ON.format(settings.project)}`. The VM is in "
                f"{settings.vm_zone}: AI zones have no usual machine types."
            )


def _wrong(settings: StackSettings, context: Context) -> Iterator[tuple[str, str]]:
    """Yield each zone that can't be used, and why."""
    known = [settings.zone]
    for zone in settings.tpu.queued.fallback_zones if settings.tpu.queued else ():
        if zone in known:
            yield zone, "is there twice" if zone != settings.zone else "is the stack's zone already"
        elif zone.rpartition("-")[0] != settings.region:
            yield zone, f"is not in {settings.region}, where the bucket and the network are"
        elif not _may_have(settings, context, zone):
            yield zone, f"offers no {settings.tpu.accelerator_type}"
        known.append(zone)


def _may_have(settings: StackSettings, context: Context, zone: str) -> bool:
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    # Another check names a type that there is not.
    if accelerator is None or zone in accelerator.zones:
        return True
    return not accelerator.zones_final and unlisted.is_zone(zone)


def _good(settings: StackSettings, context: Context) -> list[str]:
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    zones = accelerator.zones if accelerator else ()
    return [
        zone
        for zone in zones
        if zone.rpartition("-")[0] == settings.region and zone != settings.zone
    ]


def _tie(settings: StackSettings) -> tuple[str, str] | None:
    """Return why the TPU can't move, and the cure; None if it can."""
    queued = settings.tpu.queued
    if queued and not queued.enabled:
        return "contradicts tpu.queued.enabled: only a TPU out of the queue moves", "Remove one"
    if queued and queued.reservation:
        return "contradicts tpu.queued.reservation, which is in one zone", "Remove one"
    if settings.tpu.data_disks:
        return "contradicts tpu.dataDisks, which are in one zone", "Remove one, or read the bucket"
    return None
