"""`tpustack catalog`: browses what Google Cloud offers, where, and at which price."""

from __future__ import annotations

import json

import click

from infra.catalog import Catalog
from infra.checks.context import nearest, without_tpus
from infra.cost import aligned
from infra.settings.base import Problem
from tpustack import options
from tpustack.options import refuse
from tpustack.reference import catalog as tables

TABLES = {
    "accelerators": tables.accelerators,
    "runtimes": tables.runtimes,
    "machines": tables.machines,
    "prices": tables.prices,
}


@click.command("catalog")
@click.argument("table", type=click.Choice(list(TABLES)), default="accelerators")
@click.option(
    "--zone",
    shell_complete=options.zones,
    help="Only what this zone has, for example us-central1-b.",
)
@click.option(
    "--type",
    "kind",
    shell_complete=options.accelerators,
    help="Only this type or family, for example v3-32, v3 or n2-highmem.",
)
@options.as_json("table")
def command(table: str, zone: str | None, kind: str | None, as_json: bool) -> None:
    """Browse the catalog: TPU types (by zone), runtimes, machine types and prices in US dollars.

    Every fact and its source is in infra/catalog.
    """
    catalog = Catalog()
    refuse(_problems(catalog, table, zone, kind))
    if table == "accelerators" and zone is None and kind is None:
        listing = tables.by_zone(catalog)
    else:
        listing = TABLES[table](catalog, zone, kind)
    if as_json:
        click.echo(json.dumps({table: listing.records}, indent=2, ensure_ascii=False))
    elif len(listing.rows) == 1:
        refuse([Problem("--zone", zone, f"has no {kind}", f"Leave it out to see where {kind} is")])
    else:
        click.echo("\n".join(aligned(listing.rows, listing.left)))


def _problems(catalog: Catalog, table: str, zone: str | None, kind: str | None) -> list[Problem]:
    zones = dict.fromkeys(z for tpu in catalog.accelerators.values() for z in tpu.zones)
    types = dict.fromkeys(tables.names(catalog, table))
    problems = []
    if zone is not None and zone not in zones:
        problems.append(without_tpus("--zone", zone, zones))
    if kind is not None and kind not in types:
        why = f"is nothing that the catalog's {table} have"
        problems.append(Problem("--type", kind, why, nearest(kind, types)))
    return problems
