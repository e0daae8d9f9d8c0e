"""Prices: exact decimal numbers with their sources; None where no source has one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

from infra.catalog.model import Accelerator, MachineType, Source
from infra.catalog.tables import read_texts

_SPOT = ("spot", "preemptible")


def is_in(region: str, places: Iterable[str]) -> bool:
    """Return whether a region is one of some places: regions, or the first parts of their names."""
    return any(f"{region}-".startswith(f"{place}-") for place in places)


@dataclass(frozen=True)
class Price:
    """An amount in US dollars, and where it comes from."""

    amount: Decimal
    source: Source

    def times(self, factor: Decimal | int) -> Price:
        """Return the price of `factor` of it."""
        return Price(self.amount * factor, self.source)


@dataclass(frozen=True)
class NatPrices:
    """Cloud NAT in US dollars: per machine and hour up to a highest hour, per address, per GiB."""

    machine_hour: Decimal
    highest_hour: Decimal
    address_hour: Decimal
    gib: Decimal
    source: Source

    def hour(self, machines: int) -> Price:
        """Return the hourly price of a gateway with one address and some machines behind it."""
        gateway = min(self.machine_hour * machines, self.highest_hour)
        return Price(gateway + self.address_hour, self.source)


@dataclass(frozen=True)
class Entry:
    """One entry of the price list as its source has it."""

    of: tuple[str, ...]
    regions: tuple[str, ...]
    unit: str
    on_demand: str | None
    spot: str | None
    preemptible: str | None
    source: Source


class Prices:
    """The price list in one file."""

    def __init__(self, path: Path) -> None:
        # No price passes through a float.
        document = read_texts(path)
        self._tpus: Sequence[Mapping[str, Any]] = document["tpus"]
        self._gpus: Sequence[Mapping[str, Any]] = document["gpus"]
        self._machines: Sequence[Mapping[str, Any]] = document["machines"]
        self._disks: Sequence[Mapping[str, Any]] = document["disks"]
        self._storage: Sequence[Mapping[str, Any]] = document["storage"]
        self._operations: Mapping[str, str] = document["operations"]
        self._nat: Mapping[str, str] = document["nat"]
        self._keys: Mapping[str, str] = document["keys"]
        self.sources = {
            key: Source(entry["url"], date.fromisoformat(entry["date"]))
            for key, entry in document["sources"].items()
        }
        self.hours_per_month = Decimal(document["hoursPerMonth"])

    @property
    def gpus(self) -> tuple[str, ...]:
        """Devices that are no TPU, priced for comparison."""
        return tuple(dict.fromkeys(name for entry in self._gpus for name in entry["of"]))

    def tpu(self, tpu: Accelerator, region: str, capacity: str) -> Price | None:
        """Return the price of an hour of a TPU; None for a capacity without a list price.

        Spot and preemptible stand in for each other where only one of them is known.
        """
        names = {tpu.name, tpu.family}
        fitting = [entry for entry in self._tpus if not names.isdisjoint(entry["of"])]
        price = self._by_capacity(fitting, region, capacity)
        return price and price.times(tpu.chips)

    def gpu(self, name: str, region: str, capacity: str) -> Price | None:
        """Return the price of an hour of one GPU."""
        fitting = [entry for entry in self._gpus if name in entry["of"]]
        return self._by_capacity(fitting, region, capacity)

    def machine(self, machine: MachineType, region: str, *, spot: bool) -> Price | None:
        """Return the price of an hour of a VM."""
        series = machine.name.partition("-")[0]
        memory = Decimal(f"{machine.memory_gib:g}")
        vcpu, gib = ("spotVcpu", "spotGib") if spot else ("vcpu", "gib")
        for entry in self._newest(self._machines, region):
            if series in entry["series"] and vcpu in entry:
                hour = machine.vcpus * Decimal(entry[vcpu]) + memory * Decimal(entry[gib])
                return self._price(entry, hour)
        return None

    def disk(self, kind: str, region: str) -> Price | None:
        """Return the price of an hour of one GiB of a persistent disk."""
        fitting = [entry for entry in self._disks if kind in entry["types"]]
        return self._gib_hour(fitting, region)

    def storage(self, region: str) -> Price | None:
        """Return the price of an hour of one GiB of Standard storage in a bucket of a region."""
        return self._gib_hour(self._storage, region)

    def operations(self) -> dict[str, Price]:
        """Return the price of a thousand operations by class (A: writes and lists, B: reads)."""
        return {
            "A": self._price(self._operations, Decimal(self._operations["classA"])),
            "B": self._price(self._operations, Decimal(self._operations["classB"])),
        }

    def key_version(self) -> Price:
        """Return the price of an hour of a key version in Cloud KMS, the same in every region."""
        return self._price(self._keys, Decimal(self._keys["versionMonth"]) / self.hours_per_month)

    @property
    def nat(self) -> NatPrices:
        """Cloud NAT, the same in every region."""
        entry = self._nat
        return NatPrices(
            Decimal(entry["machineHour"]),
            Decimal(entry["highestHour"]),
            Decimal(entry["addressHour"]),
            Decimal(entry["gib"]),
            self.sources[entry["source"]],
        )

    def entries(self) -> Iterator[Entry]:
        """Yield the whole list in the file's order. Amounts are exact texts."""
        for entry in self._tpus:
            chips = entry["chips"]
            yield self._entry(entry, f"hour of {chips} chip{'s' * (chips != '1')}")
        for entry in self._gpus:
            yield self._entry(entry, "hour")
        for entry in self._machines:
            for unit, full, spot in (("vCPU", "vcpu", "spotVcpu"), ("GiB", "gib", "spotGib")):
                amounts = {"of": entry["series"], "onDemand": entry[full], "spot": entry[spot]}
                yield self._entry({**entry, **amounts}, f"hour of a {unit}")
        for entry in self._disks:
            amounts = {"of": entry["types"], "onDemand": entry["gibMonth"]}
            yield self._entry({**entry, **amounts}, "month of a GiB")
        for entry in self._storage:
            amounts = {"of": ["bucket"], "onDemand": entry["gibMonth"]}
            yield self._entry({**entry, **amounts}, "month of a GiB")
        everywhere = {"regions": ["all"], "source": self._operations["source"]}
        for kind, key in (("class A", "classA"), ("class B", "classB")):
            amounts = {"of": ["bucket"], "onDemand": self._operations[key]}
            yield self._entry({**everywhere, **amounts}, f"1000 operations, {kind}")
        everywhere["source"] = self._nat["source"]
        for unit, key in (
            ("hour of a machine", "machineHour"),
            ("hour at most", "highestHour"),
            ("hour of an address", "addressHour"),
            ("GiB", "gib"),
        ):
            yield self._entry({**everywhere, "of": ["nat"], "onDemand": self._nat[key]}, unit)
        version = {"of": ["key"], "onDemand": self._keys["versionMonth"]}
        yield self._entry({**everywhere, **version, "source": self._keys["source"]}, "month")

    def _entry(self, entry: Mapping[str, Any], unit: str) -> Entry:
        return Entry(
            of=tuple(entry["of"]),
            regions=tuple(entry["regions"]),
            unit=unit,
            on_demand=entry.get("onDemand"),
            spot=entry.get("spot"),
            preemptible=entry.get("preemptible"),
            source=self.sources[entry["source"]],
        )

    def _by_capacity(
        self, entries: Sequence[Mapping[str, Any]], region: str, capacity: str
    ) -> Price | None:
        """Return the price of an hour of one chip or device."""
        wanted = {"on-demand": ("onDemand",), "spot": _SPOT, "preemptible": _SPOT[::-1]}
        for key in wanted.get(capacity, ()):
            for entry in self._newest(entries, region):
                if key in entry:
                    return self._price(entry, Decimal(entry[key]) / int(entry["chips"]))
        return None

    def _gib_hour(self, entries: Sequence[Mapping[str, Any]], region: str) -> Price | None:
        for entry in self._newest(entries, region):
            return self._price(entry, Decimal(entry["gibMonth"]) / self.hours_per_month)
        return None

    def _newest(
        self, entries: Sequence[Mapping[str, Any]], region: str
    ) -> Iterator[Mapping[str, Any]]:
        here = [entry for entry in entries if is_in(region, entry["regions"])]
        yield from sorted(here, key=lambda entry: self.sources[entry["source"]].date, reverse=True)

    def _price(self, entry: Mapping[str, Any], amount: Decimal) -> Price:
        return Price(amount, self.sources[entry["source"]])
