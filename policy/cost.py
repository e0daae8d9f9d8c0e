"""A ceiling for what a stack costs an hour: its TPUs, VMs and disks, at the catalog's prices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import cache

from infra.catalog import Catalog
from infra.catalog.entries import Price
from infra.cost import Estimate, Line, dollars
from policy.machines import (
    FLEX_START,
    ON_DEMAND,
    PREEMPTIBLE,
    RESERVED,
    SPOT,
    Disk,
    Machine,
    Property,
    data_disk,
    machines,
    region_of,
)
from policy.resource import Resource, in_stack
from policy.rule import PRODUCTION, Config, Option, StackRule, production

_CEILING, _PRODUCTION_CEILING = "dollarsPerHour", "productionDollarsPerHour"


def _check(resources: Sequence[Resource], config: Config) -> Iterator[tuple[Resource, str]]:
    priced = [(resource, line) for resource in resources for line in _parts(resource)]
    if not priced:
        return
    key = _PRODUCTION_CEILING if in_stack(resources[0], config[PRODUCTION]) else _CEILING
    ceiling = Decimal(str(config[key]))
    for resource, line in priced:
        if line.configured is None:
            yield (
                resource,
                f"{resource.title}: the price of {line.part} {line.what} is in no source of the "
                f"catalog, so nobody can tell whether the stack stays below {dollars(ceiling)} an "
                "hour. Take another type or region, add the price to infra/catalog/prices.yaml, "
                "or disable cost-ceiling for this stack.",
            )
    estimate = Estimate("stack", "", Decimal(1), tuple(line for _, line in priced))
    if estimate.configured.hour > ceiling:
        # Report the most expensive part: that is the one to change.
        priced.sort(key=lambda pair: _amount(pair[1]), reverse=True)
        resource, _ = priced[0]
        parts = ", ".join(f"{line.part} {line.what} {dollars(_amount(line))}" for _, line in priced)
        yield (
            resource,
            f"{resource.title}: stack {resource.stack} costs {dollars(estimate.configured.hour)} "
            f"an hour ({parts}), more than its ceiling of {dollars(ceiling)}. Take smaller or spot "
            f"machines, or raise cost-ceiling.{key}.",
        )


def _parts(resource: Resource) -> Iterator[Line]:
    for machine in machines(resource):
        yield from _lines(machine)
    if disk := data_disk(resource):
        where = Property("zone", resource.props.get("zone"))
        yield _disk(disk, region_of(where) or "?")


def _lines(machine: Machine) -> Iterator[Line]:
    region = machine.region or "?"
    times = f"{machine.count} x " if machine.count > 1 else ""
    what = f"{times}{machine.size.value}, {machine.capacity_is}"
    hour = _tpu(machine, region) if machine.what == "TPU" else _vm(machine, region)
    yield Line.fixed(machine.what, what, hour and hour.times(machine.count))
    for disk in machine.disks:
        yield _disk(disk, region)


def _disk(disk: Disk, region: str) -> Line:
    price = _catalog().prices.disk(disk.kind, region)
    return Line.fixed("Disk", f"{disk.gib} GiB {disk.kind}", price and price.times(disk.gib))


def _tpu(machine: Machine, region: str) -> Price | None:
    catalog = _catalog()
    tpu = catalog.accelerator(machine.size.value)
    # What a reservation costs is in its contract; it is at most the list price. So it is for
    # flex-start, whose prices the catalog lacks: Google calls it cost-effective.
    unlisted = machine.capacity_is in (RESERVED, FLEX_START)
    capacity = ON_DEMAND if unlisted else machine.capacity_is
    return catalog.prices.tpu(tpu, region, capacity) if tpu else None


def _vm(machine: Machine, region: str) -> Price | None:
    catalog = _catalog()
    kind = catalog.machine_types.get(str(machine.size.value).rpartition("/")[2])
    spot = machine.capacity_is in (SPOT, PREEMPTIBLE)
    return catalog.prices.machine(kind, region, spot=spot) if kind else None


def _amount(line: Line) -> Decimal:
    return line.configured.amount if line.configured else Decimal(0)


@cache
def _catalog() -> Catalog:
    return Catalog()


COST_CEILING = StackRule(
    "cost-ceiling",
    "TPUs, VMs and their disks cost less than a ceiling.",
    {
        _CEILING: Option("number", 10, "US dollars an hour, outside production."),
        _PRODUCTION_CEILING: Option("number", 50, "US dollars an hour, in production."),
        PRODUCTION: production(),
    },
    check=_check,
)
