"""Estimates of a stack from its settings, and of an accelerator by itself."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from infra.catalog import Catalog
from infra.cost.estimate import HOURS_PER_DAY, Estimate, Line
from infra.cost.table import dollars
from infra.settings import StackSettings
from infra.settings.disks import DiskMode
from infra.settings.problems import counted
from infra.settings.tpu import Architecture, Capacity
from infra.settings.training import RunOn
from infra.settings.vm import VmCapacity

ASSUMED_STORAGE_GIB = 100


def of_stack(
    settings: StackSettings, stack: str, catalog: Catalog, hours: Decimal = Decimal(24)
) -> Estimate:
    """Price a stack. Its settings need not have been checked: what is unknown has no price."""
    lines = [
        _tpu(settings, catalog),
        _vm(settings, catalog),
        _disk(settings, catalog),
        *_data_disks(settings, catalog),
        *_address(settings),
        _bucket(settings, catalog),
        *_key(settings, catalog),
        *_nat(settings, catalog),
    ]
    notes = (*_notes(catalog, lines), *_soft_delete(settings, catalog), *_idle_vm(settings))
    whole = Estimate(f"Stack {stack}", settings.region, hours, tuple(lines), notes)
    return replace(whole, notes=(*notes, *_budget(settings, whole)))


def of_accelerator(
    name: str, region: str, capacity: Capacity, count: int, hours: Decimal, catalog: Catalog
) -> Estimate:
    """Price `count` TPUs or GPUs by themselves. Raises KeyError for an unknown name."""
    line = _accelerator(name, region, capacity, count, catalog)
    return Estimate(line.what, region, hours, (line,))


def _tpu(settings: StackSettings, catalog: Catalog) -> Line:
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


def _vm(settings: StackSettings, catalog: Catalog) -> Line:
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


def _disk(settings: StackSettings, catalog: Catalog) -> Line:
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


def _bucket(settings: StackSettings, catalog: Catalog) -> Line:
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


def _budget(settings: StackSettings, whole: Estimate) -> tuple[str, ...]:
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


def _notes(catalog: Catalog, lines: list[Line]) -> tuple[str, ...]:
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
