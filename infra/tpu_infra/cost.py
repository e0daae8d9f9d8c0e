"""What a stack costs: an estimate by the catalog's prices, as text and as JSON.

Amounts are exact decimal numbers until they are shown. A price that no source in the catalog names
is None and never 0: a total without it says that it is more. Each part has three prices, as it is
set, on demand and as spot, so that a person sees next to each other what another capacity saves.
"""

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from tpu_core.words import money, plural
from tpu_infra.catalog import Catalog
from tpu_infra.catalog.entries import Price, Source
from tpu_infra.settings import StackSettings, machines

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
    def fixed(cls, part: str, what: str, price: Price | None) -> "Line":
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
    def tpu(self) -> Total:
        """The TPU alone, as the stack is set."""
        return _sum_of_prices([line.configured for line in self.lines if line.part == "TPU"])

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
    lines = (
        _tpu_line(settings, catalog),
        *([_vm_line(settings, catalog)] if settings.has_vm else []),
        *_disk_lines(settings, catalog),
        *_other_lines(settings, catalog),
    )
    whole = Estimate(f"Stack {stack}", settings.region, hours, lines)
    return replace(whole, notes=tuple(_notes(settings, catalog, whole)))


def of_accelerator(
    name: str,
    region: str,
    capacity: machines.Capacity,
    count: int,
    hours: Decimal,
    catalog: Catalog,
) -> Estimate:
    """Price `count` TPUs or GPUs alone. Raises KeyError for an unknown name."""
    line = _accelerator(name, region, capacity, count, catalog)
    return Estimate(line.what, region, hours, (line,))


def _tpu_line(settings: StackSettings, catalog: Catalog) -> Line:
    name, capacity = settings.tpu.accelerator_type, settings.tpu.capacity
    tpu = catalog.accelerator(name, settings.tpu.topology)
    if tpu is None:
        return Line.fixed("TPU", f"{name}, {capacity}", None)
    # Classic nodes are preemptible, not spot; say so in the column of what may be taken away.
    node = settings.is_node and capacity is machines.Capacity.ON_DEMAND
    cheap = machines.Capacity.PREEMPTIBLE if node else machines.Capacity.SPOT
    count = tpu.hosts if settings.is_compute else settings.tpu.slices
    return _accelerator(name, settings.region, capacity, count, catalog, cheap)


def _accelerator(
    name: str,
    region: str,
    capacity: machines.Capacity,
    count: int,
    catalog: Catalog,
    cheap: machines.Capacity = machines.Capacity.SPOT,
) -> Line:
    prices = catalog.prices
    if capacity is machines.Capacity.PREEMPTIBLE:
        cheap = capacity
    ways = (capacity, machines.Capacity.ON_DEMAND, cheap)
    part = "GPU" if name in prices.gpus else "TPU"
    if part == "GPU":
        found = [prices.gpu(name, region, way) for way in ways]
    else:
        tpu = catalog.accelerator(name)
        if tpu is None:
            raise KeyError(name)
        found = [prices.tpu(tpu, region, way) for way in ways]
    what = f"{_times(count)}{name}, {capacity}"
    return Line(part, what, *(price and price.times(count) for price in found))


def _vm_line(settings: StackSettings, catalog: Catalog) -> Line:
    machine = catalog.machine_types.get(settings.vm.machine_type)
    what = f"{settings.vm.machine_type}, {settings.vm.capacity}"
    if machine is None:
        return Line.fixed("VM", what, None)
    on_demand, spot = (
        catalog.prices.machine(machine, settings.region, spot=spot) for spot in (False, True)
    )
    # Preemptible VMs cost what spot VMs cost.
    configured = on_demand if settings.vm.capacity is machines.VmCapacity.ON_DEMAND else spot
    return Line("VM", what, configured, on_demand, spot)


def _disk_lines(settings: StackSettings, catalog: Catalog) -> Iterator[Line]:
    """Yield the disks of the VM or of each machine, and the stack's own data disks.

    Each slice has its own of those that are written to.
    """
    tpu = catalog.accelerator(settings.tpu.accelerator_type, settings.tpu.topology)
    boot: list[tuple[int, str, int]] = []
    if settings.has_vm:
        boot.append((1, settings.vm.boot_disk_type.value, settings.vm.boot_disk_gib))
    if settings.is_compute:
        kind = tpu.disk_types[0] if tpu else ""
        boot.append((tpu.hosts if tpu else 1, kind, settings.tpu.compute_disk_gib))
    for count, kind, gib in boot:
        price = catalog.prices.disk(kind, settings.region)
        what = f"{_times(count)}{gib} GiB {kind}"
        yield Line.fixed("Disk", what, price and price.times(gib * count))
    for disk in settings.tpu.data_disks:
        if disk.source:
            continue
        count = settings.tpu.slices if disk.mode is machines.DiskMode.READ_WRITE else 1
        kind = disk.type or (tpu.disk_types[0] if tpu else "")
        price = catalog.prices.disk(kind, settings.region) if disk.size_gib else None
        size = f"{disk.size_gib} GiB" if disk.size_gib else "as its snapshot"
        cost = price and price.times((disk.size_gib or 0) * count)
        yield Line.fixed("Data disk", f"{_times(count)}{size} {kind}", cost)


def _other_lines(settings: StackSettings, catalog: Catalog) -> Iterator[Line]:
    """Yield what belongs to no machine's price: addresses, the bucket, a key, the way out."""
    prices, tpu = catalog.prices, settings.tpu
    if settings.has_vm and settings.vm.public_ip:
        yield Line.fixed("Address", "public, of the VM", None)
    if tpu.external_ips:
        yield Line.fixed("Address", "public, of the TPU", None)
    price = prices.storage(settings.region)
    what = f"{ASSUMED_STORAGE_GIB} GiB Standard"
    yield Line.fixed("Bucket", what, price and price.times(ASSUMED_STORAGE_GIB))
    encryption = settings.bucket.encryption
    if encryption is not None and encryption.key is None:
        yield Line.fixed("Key", "1 version", prices.key_version())
    accelerator = catalog.accelerator(tpu.accelerator_type, tpu.topology)
    # A classic node is in a network of Google's, and never behind the stack's gateway.
    inside = not settings.is_node and not tpu.external_ips
    hosts = accelerator.hosts * tpu.slices if accelerator and inside else 0
    behind = hosts + (settings.has_vm and not settings.vm.public_ip)
    if settings.network.create and behind:
        yield Line.fixed("NAT", plural(behind, "machine"), prices.nat.hour(behind))


def _notes(settings: StackSettings, catalog: Catalog, whole: Estimate) -> Iterator[str]:
    """Yield what an hour's price does not say."""
    prices, bucket = catalog.prices, settings.bucket
    operations = prices.operations()
    yield (
        f"Bucket: assumes {ASSUMED_STORAGE_GIB} GiB. A thousand writes or lists cost "
        f"{money(operations['A'].amount, 3)}, a thousand reads "
        f"{money(operations['B'].amount, 4)}."
    )
    if any(line.part == "NAT" for line in whole.lines):
        yield f"NAT: each GiB of traffic costs {money(prices.nat.gib, 3)}."
    gib, days = prices.storage(settings.region), bucket.kept_days
    if bucket.create and days and gib:
        month = money(gib.amount * days * HOURS_PER_DAY * prices.hours_per_month)
        yield (
            f"Bucket: replaced and deleted objects are billed for {days} more days, even after "
            "`destroy` (bucket.softDeleteDays). Each GiB of checkpoints replaced hourly costs "
            f"{month} a month."
        )
    if settings.is_compute and settings.has_vm:
        yield "VM: it only recreates a preempted TPU (recovery.enabled)."
    elif settings.trains_on_tpu and settings.has_vm:
        yield (
            "VM: it doesn't train (training.runOn is tpu). You can log in to it in the TPU VM's "
            "network, and pay its price."
        )


def _times(count: int) -> str:
    return f"{count} x " if count > 1 else ""


# --- An estimate as text, as a person reads it, and as JSON, as a program does

UNKNOWN = "unknown"


def aligned(
    rows: Sequence[Sequence[str]],
    left: int,
    columns: int | None = None,
    optional: Sequence[str] = (),
) -> list[str]:
    """Return rows of cells as lines with even columns, the first `left` of them left-aligned.

    The others are numbers, whose ends people compare.

    Args:
        rows: the first is the heading.
        left: how many columns are text.
        columns: the terminal's width. A table that is wider loses its optional columns, one by
            one; if that is not enough, each cell gets a line of its own.
        optional: headings of columns that are left out first.
    """
    lines = _even(rows, left)
    while columns and max(map(len, lines)) > columns:
        gone = next((rows[0].index(name) for name in optional if name in rows[0]), None)
        if gone is None:
            return list(_stacked(rows, columns))
        rows = [(*row[:gone], *row[gone + 1 :]) for row in rows]
        left -= gone < left
        lines = _even(rows, left)
    return lines


def _stacked(rows: Sequence[Sequence[str]], columns: int) -> Iterator[str]:
    heading, *others = rows
    for row in others:
        for number, (name, cell) in enumerate(zip(heading, row, strict=True)):
            indent = "  " if number else ""
            text = f"{name}: {cell}" if name and number else cell
            yield from wrapped(text, columns, indent, f"{indent}  ").splitlines()


def _even(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def table(estimate: Estimate, columns: int | None = None) -> str:
    """Return the estimate as lines of text; `columns` is the terminal's width, if there is one."""
    hours = estimate.hours
    rows = [("", "", "hour", "day", f"run of {hours:f} h", "run on demand", "run on spot")]
    for line in estimate.lines:
        ways = (line.configured, line.on_demand, line.spot)
        totals = [Total(price.amount if price else Decimal(0), bool(price)) for price in ways]
        rows.append((line.part, line.what, *_cells(totals, hours)))
    whole = (estimate.configured, estimate.on_demand, estimate.spot)
    rows.append(("Total", "", *_cells(whole, hours)))
    title = f"{estimate.title} in {estimate.region}, US dollars"
    whole_table = aligned(rows, 2, columns, ("run on demand", "run on spot"))
    if "run on spot" not in whole_table[0]:
        whole_table += ["", *_other_ways(whole, hours)]
    notes = [wrapped(note, columns) for note in _notes_of_table(estimate)]
    return "\n".join([wrapped(title, columns), "", *whole_table, "", *notes])


def _other_ways(whole: Sequence[Total], hours: Decimal) -> Iterator[str]:
    """Yield what the run costs on demand and on spot, for a table without these columns."""
    *_, on_demand, spot = _cells(whole, hours)
    yield f"Run on demand: {on_demand}"
    yield f"Run on spot: {spot}"


def wrapped(text: str, columns: int | None, first: str = "", rest: str = "") -> str:
    """Return a paragraph in indented lines of at most `columns`; as one line without a terminal."""
    if columns is None:
        return f"{first}{text}"
    return textwrap.fill(
        text, columns, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )


def _cells(totals: Sequence[Total], hours: Decimal) -> tuple[str, str, str, str, str]:
    """Return an hour, a day and a run as it is set, and a run on demand and on spot."""
    configured, on_demand, spot = totals
    return (
        _sum(configured, money(configured.hour, 4)),
        _sum(configured, money(configured.hour * HOURS_PER_DAY)),
        _sum(configured, money(configured.hour * hours)),
        _sum(on_demand, money(on_demand.hour * hours)),
        _sum(spot, money(spot.hour * hours)),
    )


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
            name: {**_in_spans(total.hour, estimate.hours), "complete": total.complete}
            for name, total in (
                ("configured", estimate.configured),
                ("onDemand", estimate.on_demand),
                ("spot", estimate.spot),
            )
        },
        "notes": list(estimate.notes),
    }


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
                f"{UNKNOWN}: the catalog has no price for {line.part} {line.what} in "
                f"{estimate.region} ({', '.join(unknown)})."
            )
    return [*notes, *(f"Prices of {source.date}: {source.url}" for source in estimate.sources)]


def _spans(price: Price | None, hours: Decimal) -> dict[str, Any] | None:
    if price is None:
        return None
    source = {"url": price.source.url, "date": price.source.date.isoformat()}
    return {**_in_spans(price.amount, hours), "source": source}


def _in_spans(hour: Decimal, hours: Decimal) -> dict[str, str]:
    return {"hour": _plain(hour), "day": _plain(hour * HOURS_PER_DAY), "run": _plain(hour * hours)}


def _plain(number: Decimal) -> str:
    return f"{number.normalize():f}"


# --- What a stack keeps costing after its training, and what ends that


def until_destroyed(estimate: Estimate, settings: StackSettings, stack: str) -> str:
    """Say what the stack costs until which command, whether or not it trains."""
    hour = estimate.configured
    amount = f"{'' if hour.complete else 'over '}{money(hour.hour)}"
    return _until(f"cost {amount} an hour", settings, stack)


def without_price(settings: StackSettings, stack: str) -> str:
    """Say the same in a machine's metadata, where each new price would be an update of it."""
    return _until("are billed", settings, stack)


def _until(costs: str, settings: StackSettings, stack: str) -> str:
    end = f"`pulumi destroy --stack {stack}`"
    if settings.bucket.protect:  # The engine refuses to destroy what is protected.
        end = f"`pulumi destroy --exclude-protected --stack {stack}`"
    what = "TPU and VM" if settings.has_vm or not settings.is_compute else "TPU and disk"
    costing = f"{what} {costs} until {end}, even after training ends or fails."
    return f"{costing} {_limits(settings)}"


def _limits(settings: StackSettings) -> str:
    limits, queued = settings.limits, settings.tpu.queued
    ends = []
    if limits.idle_minutes is not None:
        ends.append(f"after {limits.idle_minutes:g} idle minutes")
    if limits.time_to_live_hours is not None:
        ends.append(f"{limits.time_to_live_hours:g} hours after its creation")
    if settings.is_compute or not ends:
        life = limits.time_to_live_hours or (queued and queued.run_hours)
        if life:
            return f"Google deletes the TPU {life:g} hours after its creation"
    if settings.is_compute:
        return "Nothing else stops it"
    if not ends:
        return "The stack has no limits, so nothing else stops the TPU (limits.idleMinutes)"
    return (
        f"Its limits stop or delete the TPU {' and '.join(ends)}; the VM's disk and the bucket stay"
    )
