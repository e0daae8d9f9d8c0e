"""What a shell offers for the value of an option; loaded when it is asked."""

from __future__ import annotations

import click


def stacks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The stacks that have a file."""
    from tpustack.errors import UsageError
    from tpustack.stacks import all_stacks

    try:
        return [name for name in all_stacks() if name.startswith(incomplete)]
    except UsageError:
        return []


def zones(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The zones with TPUs."""
    from infra.catalog import Catalog

    types = Catalog().accelerators.values()
    found = {zone for tpu in types for zone in tpu.zones}
    return sorted(zone for zone in found if zone.startswith(incomplete))


def accelerators(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The types of TPU, smallest first within a family."""
    from infra.catalog import Catalog

    return [name for name in Catalog().accelerators if name.startswith(incomplete)]
