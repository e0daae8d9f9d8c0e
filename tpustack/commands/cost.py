"""`tpustack cost`: estimates what a stack, or a TPU by itself, costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal

import click

from infra.catalog import Catalog
from infra.checks.context import nearest, one_of
from infra.cost import as_json, of_accelerator, of_stack, table
from infra.settings.base import Problem
from infra.settings.machines import Capacity
from tpustack import options
from tpustack.errors import UsageError
from tpustack.options import Hours, refuse
from tpustack.project import root
from tpustack.stacks import files as stacks
from tpustack.stacks.compiled import manifest_of
from tpustack.stacks.epoch import epoch_cost, epoch_line


@click.command("cost")
@options.stack("The stack.")
@click.option(
    "--hours", type=Hours(), default="24", show_default=True, help="How long a run takes."
)
@click.option(
    "--accelerator-type",
    shell_complete=options.accelerators,
    help="A TPU such as v3-32, or the GPU V100, without a stack.",
)
@click.option("--region", help="Where, without a stack.")
@click.option(
    "--capacity",
    type=click.Choice([str(capacity) for capacity in Capacity]),
    help="How it is bought, without a stack.  [default: on-demand]",
)
@click.option("--count", type=click.IntRange(1, 100_000), help="How many.  [default: 1]")
@click.option("--json", "json_wanted", is_flag=True, help="Print the result as JSON.")
def command(
    stack: str | None,
    hours: Decimal,
    accelerator_type: str | None,
    region: str | None,
    capacity: str | None,
    count: int | None,
    json_wanted: bool,
) -> None:
    """Show what a stack costs an hour, a day and a run, as it is set, on demand and as spot.

    Also what an epoch costs at least, once `tpu-training compile` was asked for the stack's job.

    Without a stack: what a TPU costs. A price that no source names is unknown.
    """
    catalog = Catalog()
    epoch, line = None, None
    if stack is not None:
        others = {
            "--accelerator-type": accelerator_type,
            "--region": region,
            "--capacity": capacity,
            "--count": count,
        }
        if given := [name for name, value in others.items() if value is not None]:
            raise UsageError(
                f"{', '.join(given)} cannot be combined with --stack: the stack's settings say it"
            )
        settings = stacks.load(stack)
        # What is not built yet costs nothing; everything else should be right first.
        problems = stacks.check(stack, catalog).problems
        refuse([problem for problem in problems if not problem.setting.startswith("training.")])
        estimate = of_stack(settings, stack, catalog, hours)
        # Several slices share each step, which is compiled for one.
        if settings.tpu.slices == 1:
            manifest = manifest_of(settings, root())
            epoch = epoch_cost(settings, manifest, estimate)
            line = epoch_line(settings, manifest, epoch)
    elif accelerator_type is None or region is None:
        raise UsageError("say --stack, or both --accelerator-type and --region")
    else:
        refuse([*_accelerator_problems(accelerator_type, region, catalog)])
        way = Capacity(capacity or Capacity.ON_DEMAND)
        estimate = of_accelerator(accelerator_type, region, way, count or 1, hours, catalog)
    if json_wanted:
        known = epoch and epoch.as_json()
        click.echo(json.dumps({**as_json(estimate), "epoch": known}, indent=2))
    else:
        click.echo(table(estimate) + (f"\n\n{line}" if line else ""))


def _accelerator_problems(name: str, region: str, catalog: Catalog) -> Iterator[Problem]:
    types = catalog.accelerators
    known = name in types or name in catalog.prices.gpus
    if not known:
        cure = nearest(name, [*types, *catalog.prices.gpus])
        yield Problem("--accelerator-type", name, "is no accelerator in the catalog", cure)
    regions = {
        zone.rpartition("-")[0]: None
        for other in types.values()
        for zone in other.zones
        if name not in types or other.name == name
    }
    if region not in regions:
        why = f"has no {name}" if name in types else "has no TPUs"
        yield Problem("--region", region, why, f"Use {one_of(regions)}")
