"""What a stack costs: an estimate by the catalog's prices, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from infra.catalog import Catalog
from infra.catalog.entries import Price, Source
from infra.settings import StackSettings
from infra.settings.base import counted
from infra.settings.machines import Architecture, Capacity, DiskMode, RunOn, VmCapacity

# --- An estimate: a line for each part, with its price as configured, on demand and as spot

HOURS_PER_DAY = 24


@dataclass(frozen=True)
class Line:
    """One part of a stack. Prices are for an hour; None: no source in the catalog names it."""

    part: str
    what: str
    configured: Price | None
    on_demand: Price | None
    spot: Price | None

    @classmethod
    def fixed(cls, part: str, what: str, price: Price | None) -> Line:
        """Return a part that costs the same whichever way the machines are bought."""
        return cls(part, what, price, price, price)


@dataclass(frozen=True)
class Total:
    """A sum in US dollars for an hour; not `complete` if a part's price is unknown."""

    hour: Decimal
    complete: bool


@dataclass(frozen=True)
class Estimate:
    """The parts of a stack, and a run of `hours` hours."""

    title: str
    region: str
    hours: Decimal
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()

    @property
    def configured(self) -> Total:
        """As the stack is set."""
        return _sum_of_prices([line.configured for line in self.lines])

    @property
    def on_demand(self) -> Total:
        """With all machines on demand."""
        return _sum_of_prices([line.on_demand for line in self.lines])

    @property
    def spot(self) -> Total:
        """With all machines bought so that Google may take them away."""
        return _sum_of_prices([line.spot for line in self.lines])

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where the prices come from, each once."""
        prices = [
            price
            for line in self.lines
            for price in (line.configured, line.on_demand, line.spot)
            if price
        ]
        return tuple(dict.fromkeys(price.source for price in prices))


def _sum_of_prices(prices: Sequence[Price | None]) -> Total:
    known = [price.amount for price in prices if price]
    return Total(sum(known, Decimal(0)), complete=len(known) == len(prices))


# --- Estimates of a stack from its settings, and of an accelerator alone

ASSUMED_STORAGE_GIB = 100


def of_stack(
    settings: StackSettings, stack: str, catalog: Catalog, hours: Decimal = Decimal(24)
) -> Estimate:
    """Price a stack. Its settings need not have been checked: what is unknown has no price."""
    lines = [
        _tpu_line(settings, catalog),
        _vm_line(settings, catalog),
        _disk_line(settings, catalog),
        *_data_disks(settings, catalog),
        *_address(settings),
        _bucket_line(settings, catalog),
        *_key(settings, catalog),
        *_nat(settings, catalog),
    ]
    notes = (
        *_notes_of_stack(catalog, lines),
        *_soft_delete(settings, catalog),
        *_idle_vm(settings),
    )
    whole = Estimate(f"Stack {stack}", settings.region, hours, tuple(lines), notes)
    return replace(whole, notes=(*notes, *_budget_note(settings, whole)))


def of_accelerator(
    name: str, region: str, capacity: Capacity, count: int, hours: Decimal, catalog: Catalog
) -> Estimate:
    """Price `count` TPUs or GPUs alone. Raises KeyError for an unknown name."""
    line = _accelerator(name, region, capacity, count, catalog)
    return Estimate(line.what, region, hours, (line,))


def _tpu_line(settings: StackSettings, catalog: Catalog) -> Line:
    name, capacity = settings.tpu.accelerator_type, settings.tpu.capacity
    slices = settings.tpu.slices
    if catalog.accelerator(name) is None:
        return Line.fixed("TPU", f"{name}, {capacity}", None)
    if settings.architecture is Architecture.NODE and capacity is Capacity.ON_DEMAND:
        # Classic nodes are preemptible, not spot; say so in the column of what may be taken away.
        return _accelerator(name, settings.region, capacity, slices, catalog, Capacity.PREEMPTIBLE)
    return _accelerator(name, settings.region, capacity, slices, catalog)


def _accelerator(
    name: str,
    region: str,
    capacity: Capacity,
    count: int,
    catalog: Catalog,
    cheap: Capacity = Capacity.SPOT,
) -> Line:
    prices = catalog.prices
    if capacity is Capacity.PREEMPTIBLE:
        cheap = capacity
    ways = (capacity, Capacity.ON_DEMAND, cheap)
    if name in prices.gpus:
        found = [prices.gpu(name, region, way) for way in ways]
    else:
        tpu = catalog.accelerator(name)
        if tpu is None:
            raise KeyError(name)
        found = [prices.tpu(tpu, region, way) for way in ways]
    times = f"{count} x " if count > 1 else ""
    part = "GPU" if name in prices.gpus else "TPU"
    return Line(
        part, f"{times}{name}, {capacity}", *(price and price.times(count) for price in found)
    )


def _vm_line(settings: StackSettings, catalog: Catalog) -> Line:
    machine = catalog.machine_types.get(settings.vm.machine_type)
    what = f"{settings.vm.machine_type}, {settings.vm.capacity}"
    if machine is None:
        return Line.fixed("VM", what, None)
    on_demand, spot = (
        catalog.prices.machine(machine, settings.region, spot=spot) for spot in (False, True)
    )
    # Preemptible VMs cost what spot VMs cost.
    configured = on_demand if settings.vm.capacity is VmCapacity.ON_DEMAND else spot
    return Line("VM", what, configured, on_demand, spot)


def _disk_line(settings: StackSettings, catalog: Catalog) -> Line:
    kind, gib = settings.vm.boot_disk_type, settings.vm.boot_disk_gib
    price = catalog.prices.disk(kind, settings.region)
    return Line.fixed("Disk", f"{gib} GiB {kind}", price and price.times(gib))


def _data_disks(settings: StackSettings, catalog: Catalog) -> list[Line]:
    """Return the stack's own disks; each slice has its own of those that are written to."""
    lines = []
    tpu = catalog.accelerator(settings.tpu.accelerator_type)
    for disk in settings.tpu.data_disks:
        if disk.source:
            continue
        count = settings.tpu.slices if disk.mode is DiskMode.READ_WRITE else 1
        kind = disk.type or (tpu.disk_types[0] if tpu else "")
        price = catalog.prices.disk(kind, settings.region) if disk.size_gib else None
        size = f"{disk.size_gib} GiB" if disk.size_gib else "as its snapshot"
        times = f"{count} x " if count > 1 else ""
        lines.append(
            Line.fixed(
                "Data disk",
                f"{times}{size} {kind}",
                price and price.times((disk.size_gib or 0) * count),
            )
        )
    return lines


def _address(settings: StackSettings) -> list[Line]:
    lines = [Line.fixed("Address", "public, of the VM", None)] if settings.vm.public_ip else []
    if settings.tpu.external_ips:
        lines.append(Line.fixed("Address", "public, of the TPU", None))
    return lines


def _bucket_line(settings: StackSettings, catalog: Catalog) -> Line:
    price = catalog.prices.storage(settings.region)
    what = f"{ASSUMED_STORAGE_GIB} GiB Standard"
    return Line.fixed("Bucket", what, price and price.times(ASSUMED_STORAGE_GIB))


def _soft_delete(settings: StackSettings, catalog: Catalog) -> tuple[str, ...]:
    """Say what it costs that Google keeps replaced objects in a bucket that the stack makes."""
    days = settings.bucket.kept_days
    price = catalog.prices.storage(settings.region)
    if not (settings.bucket.create and days and price):
        return ()
    month = dollars(price.amount * days * HOURS_PER_DAY * catalog.prices.hours_per_month)
    return (
        f"Bucket: what is replaced or deleted is billed for {days} more days, also after `destroy` "
        f"(bucket.softDeleteDays). Each GiB of checkpoints that is replaced hourly costs {month} a "
        "month.",
    )


def _key(settings: StackSettings, catalog: Catalog) -> list[Line]:
    encryption = settings.bucket.encryption
    if encryption is None or encryption.key is not None:
        return []
    return [Line.fixed("Key", "1 version", catalog.prices.key_version())]


def _budget_note(settings: StackSettings, whole: Estimate) -> tuple[str, ...]:
    """Say how long the budget lasts; Google counts it in the billing account's currency."""
    budget, hour = settings.budget, whole.configured.hour
    if budget is None or not hour or budget.currency not in (None, "USD"):
        return ()
    hours = int(budget.amount / hour)
    most = "" if whole.configured.complete else "at most "
    amount = dollars(Decimal(budget.amount), 0)
    return (f"Budget: {amount} a month last {most}{hours} hours of the stack as it is set.",)


def _idle_vm(settings: StackSettings) -> tuple[str, ...]:
    """Say what the VM is for where the TPU VM runs the trainer."""
    if settings.training.run_on is RunOn.VM:
        return ()
    return (
        "VM: it trains nothing (training.runOn is tpu). It is there to log in to, in the network "
        "of the TPU VM, and costs its price.",
    )


def _nat(settings: StackSettings, catalog: Catalog) -> list[Line]:
    tpu = catalog.accelerator(settings.tpu.accelerator_type)
    # A classic node is in a network of Google's, and never behind the stack's gateway.
    inside = settings.architecture is Architecture.VM and not settings.tpu.external_ips
    hosts = tpu.hosts * settings.tpu.slices if tpu and inside else 0
    machines = hosts + (not settings.vm.public_ip)
    if not (settings.network.create and machines):
        return []
    price = catalog.prices.nat.hour(machines)
    return [Line.fixed("NAT", counted(machines, "machine"), price)]


def _notes_of_stack(catalog: Catalog, lines: list[Line]) -> tuple[str, ...]:
    operations = catalog.prices.operations()
    notes = [
        f"Bucket: {ASSUMED_STORAGE_GIB} GiB are assumed. A thousand writes or lists cost "
        f"{dollars(operations['A'].amount, 3)}, a thousand reads "
        f"{dollars(operations['B'].amount, 4)}."
    ]
    if any(line.part == "NAT" for line in lines):
        gib = dollars(catalog.prices.nat.gib, 3)
        notes.append(f"NAT: each GiB that goes through it costs {gib}.")
    return tuple(notes)


# --- An estimate as text, as a person reads it, and as JSON, as a program does

UNKNOWN = "unknown"


def dollars(amount: Decimal, places: int = 2) -> str:
    """Return an amount like `$12,288.00`; half a cent is rounded up."""
    return f"${amount.quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP):,f}"


def aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Return rows of cells as lines with even columns, the first `left` of them left-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def table(estimate: Estimate) -> str:
    """Return the estimate as lines of text."""
    run = f"{estimate.hours:f} h"
    heading = ("", "", "hour", "day", f"run of {run}", "run on demand", "run on spot")
    rows: list[tuple[str, ...]] = [heading]
    for line in estimate.lines:
        others = [_run(price, estimate.hours) for price in (line.on_demand, line.spot)]
        rows.append((line.part, line.what, *_amounts(line.configured, estimate.hours), *others))
    totals = (estimate.configured, estimate.on_demand, estimate.spot)
    rows.append(("Total", "", *_totals(totals, estimate.hours)))
    title = f"{estimate.title} in {estimate.region}, US dollars"
    return "\n".join([title, "", *aligned(rows, left=2), "", *_notes_of_table(estimate)])


def as_json(estimate: Estimate) -> dict[str, Any]:
    """Return the estimate with exact amounts as texts; an unknown amount is null."""
    return {
        "title": estimate.title,
        "region": estimate.region,
        "currency": "USD",
        "hours": _plain(estimate.hours),
        "lines": [
            {
                "part": line.part,
                "what": line.what,
                "configured": _spans(line.configured, estimate.hours),
                "onDemand": _spans(line.on_demand, estimate.hours),
                "spot": _spans(line.spot, estimate.hours),
            }
            for line in estimate.lines
        ],
        "total": {
            name: {**_times(total.hour, estimate.hours), "complete": total.complete}
            for name, total in (
                ("configured", estimate.configured),
                ("onDemand", estimate.on_demand),
                ("spot", estimate.spot),
            )
        },
        "notes": list(estimate.notes),
    }


def _amounts(price: Price | None, hours: Decimal) -> tuple[str, str, str]:
    if price is None:
        return (UNKNOWN,) * 3
    hour = price.amount
    return dollars(hour, 4), dollars(hour * HOURS_PER_DAY), dollars(hour * hours)


def _run(price: Price | None, hours: Decimal) -> str:
    return dollars(price.amount * hours) if price else UNKNOWN


def _totals(totals: Sequence[Total], hours: Decimal) -> tuple[str, ...]:
    configured, *others = totals
    amounts = [
        (configured, dollars(configured.hour, 4)),
        (configured, dollars(configured.hour * HOURS_PER_DAY)),
        *((total, dollars(total.hour * hours)) for total in (configured, *others)),
    ]
    return tuple(_sum(total, text) for total, text in amounts)


def _sum(total: Total, text: str) -> str:
    if total.complete:
        return text
    return f"over {text}" if total.hour else UNKNOWN


def _notes_of_table(estimate: Estimate) -> list[str]:
    notes = list(estimate.notes)
    for line in estimate.lines:
        ways = {"as it is set": line.configured, "on demand": line.on_demand, "spot": line.spot}
        if unknown := [way for way, price in ways.items() if price is None]:
            notes.append(
                f"{UNKNOWN}: no source in the catalog has a price of {line.part} {line.what} in "
                f"{estimate.region} ({', '.join(unknown)})."
            )
    notes += [f"Prices of {source.date}: {source.url}" for source in estimate.sources]
    return notes


def _spans(price: Price | None, hours: Decimal) -> dict[str, Any] | None:
    if price is None:
        return None
    source = {"url": price.source.url, "date": price.source.date.isoformat()}
    return {**_times(price.amount, hours), "source": source}


def _times(hour: Decimal, hours: Decimal) -> dict[str, str]:
    return {"hour": _plain(hour), "day": _plain(hour * HOURS_PER_DAY), "run": _plain(hour * hours)}


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


# --- What a stack keeps costing after its training, and what ends that


def until_destroyed(estimate: Estimate, settings: StackSettings, stack: str) -> str:
    """Say what the stack costs until which command, whether or not it trains."""
    hour = estimate.configured
    amount = f"{'' if hour.complete else 'over '}{dollars(hour.hour)}"
    return _until(f"cost {amount} an hour", settings, stack)


def without_price(settings: StackSettings, stack: str) -> str:
    """Say the same in a machine's metadata, where each new price would be an update of it."""
    return _until("keep costing", settings, stack)


def _until(costs: str, settings: StackSettings, stack: str) -> str:
    return (
        f"TPU and VM {costs}, also once the training has ended or failed, until "
        f"{_end(settings, stack)}. {_limits(settings)}"
    )


def _end(settings: StackSettings, stack: str) -> str:
    """Return the command that ends it; the engine refuses to destroy what is protected."""
    if settings.bucket.protect:
        return f"`pulumi destroy --exclude-protected --stack {stack}`"
    return f"`pulumi destroy --stack {stack}`"


def _limits(settings: StackSettings) -> str:
    limits = settings.limits
    said = []
    if limits.idle_minutes is not None:
        said.append(f"when nothing has trained for {limits.idle_minutes:g} minutes")
    if limits.time_to_live_hours is not None:
        said.append(f"{limits.time_to_live_hours:g} hours after it was made")
    if not said:
        return "The stack has no limits: nothing else takes the TPU down (limits.idleMinutes)"
    return f"Its limits take the TPU down {' and '.join(said)}; the VM's disk and the bucket stay"
