"""Checks of the TPU's type, zone and form."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.catalog import unlisted
from infra.checks.context import Context, nearest, one_of, without_tpus
from infra.settings import StackSettings
from infra.settings.problems import Problem
from infra.settings.tpu import Architecture, Capacity
from infra.settings.training import RunOn

# TPU7x, and what would follow it under either form of name.
_LATER = re.compile(r"tpu\d+|v[7-9](?!\d)|v\d\d")


def check_zone(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the zone has TPUs, and this type among them."""
    types = context.catalog.accelerators
    here = [name for name, other in types.items() if settings.zone in other.zones]
    accelerator = context.catalog.accelerator(settings.tpu.accelerator_type)
    may_be_new = accelerator is not None and not accelerator.zones_final
    if not here and not (may_be_new and unlisted.is_zone(settings.zone)):
        having = (accelerator, *types.values()) if accelerator else types.values()
        zones = dict.fromkeys(zone for each in having for zone in each.zones)
        yield without_tpus("zone", settings.zone, zones)
        return
    if accelerator and accelerator.zones_final and settings.zone not in accelerator.zones:
        same = [name for name in here if types[name].family == accelerator.family]
        yield Problem(
            "zone",
            settings.zone,
            f"offers no {accelerator.name}",
            f"Use {one_of(accelerator.zones)} for it; {settings.zone} has "
            f"{', '.join((same or here)[:5])}",
        )


def check_accelerator(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the type exists with this architecture."""
    types = context.catalog.accelerators
    wanted = settings.tpu.accelerator_type
    accelerator = context.catalog.accelerator(wanted)
    if accelerator is None:
        later = _LATER.match(wanted)
        yield Problem(
            "tpu.acceleratorType",
            wanted,
            "is of a generation that the Cloud TPU API does not serve: TPU7x and later are on "
            "Compute Engine and GKE alone (docs/tpu.md)"
            if later
            else "is no TPU type that Google offers",
            nearest(wanted, types),
        )
    elif settings.architecture.value not in accelerator.architectures:
        nodes = [name for name, other in types.items() if "node" in other.architectures]
        yield Problem(
            "architecture",
            settings.architecture.value,
            f"does not exist for {wanted}",
            f"Use architecture vm, or one of {', '.join(nodes)}",
        )


def check_form(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Refuse settings that belong to another form of TPU."""
    tpu = settings.tpu
    node = settings.architecture is Architecture.NODE
    if node and tpu.runtime_version:
        yield Problem(
            "tpu.runtimeVersion",
            tpu.runtime_version,
            "is for architecture vm; a classic node has a TensorFlow version",
            "Set tpu.tensorflowVersion instead",
        )
    if not node and tpu.tensorflow_version:
        yield Problem(
            "tpu.tensorflowVersion",
            tpu.tensorflow_version,
            "is for architecture node; a TPU VM has a runtime",
            "Set tpu.runtimeVersion instead",
        )
    if not node and tpu.cidr_block:
        yield Problem(
            "tpu.cidrBlock",
            tpu.cidr_block,
            "is for architecture node; a TPU VM has its address from the subnet",
            "Remove it",
        )
    if node and tpu.queued:
        yield Problem(
            "tpu.queued",
            tpu.queued.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "is for architecture vm; Google queues no classic node",
            "Remove it",
        )
    if node and settings.training.run_on is RunOn.TPU:
        yield Problem(
            "training.runOn",
            "tpu",
            "is for architecture vm; nobody can log on to a classic node",
            "Use vm",
        )


def warn_about_node(settings: StackSettings, context: Context) -> Iterator[str]:
    """Warn that Google makes classic nodes for few projects.

    Sources: github.com/hashicorp/terraform-provider-google/issues/22526 and
    github.com/GoogleCloudPlatform/magic-modules/issues/13759 (2025-04).
    """
    if settings.architecture is Architecture.NODE:
        yield (
            "architecture is node, and since 2025-04-15 Google denies new TPU nodes to projects "
            'that are not on its list ("Your request to provision TPU Node has been denied"), once '
            "the VM is there and costs. Use architecture vm unless yours is on the list."
        )


def check_capacity(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that this form of TPU can be bought this way."""
    tpu = settings.tpu
    if settings.architecture is Architecture.NODE and tpu.capacity in (
        Capacity.SPOT,
        Capacity.RESERVED,
        Capacity.FLEX_START,
    ):
        yield Problem(
            "tpu.capacity",
            tpu.capacity.value,
            "is for architecture vm",
            "Use on-demand or preemptible for a classic node",
        )
