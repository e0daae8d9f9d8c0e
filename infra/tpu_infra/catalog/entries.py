"""The catalog's entries as typed records, and how its files are read."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from enum import Enum
from functools import cache
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import yaml

# The C loaders are some ten times as fast; wheels of PyYAML for a few platforms come without them.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TEXTS = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@cache
def read_table(path: Path) -> Any:
    """Return the document in a file. Callers must not change it."""
    return yaml.load(path.read_text("utf-8"), Loader=_LOADER)


@cache
def read_texts(path: Path) -> Any:
    """Return the document in a file with every number as the text that stands there."""
    return yaml.load(path.read_text("utf-8"), Loader=_TEXTS)


# --- The catalog's entries as plain typed records


@dataclass(frozen=True)
class Source:
    """Where an entry comes from, and when it was true."""

    url: str
    date: date


@dataclass(frozen=True)
class Accelerator:
    """One type and size of TPU."""

    name: str
    family: str
    topology: str
    chips: int
    cores: int
    hosts: int
    hbm_gib: int
    """High-bandwidth memory of all chips together."""
    zones: tuple[str, ...]
    architectures: tuple[str, ...]
    cidr_prefix: int | None
    """Longest prefix (smallest block) that a classic node of this type fits in; None for others."""
    grpc_worker: bool
    """Whether `start_grpc_tpu_worker` runs on this family."""
    disk_types: tuple[str, ...]
    """Kinds of data disk, the first of them the default."""
    data_disks: int
    """How many data disks a host takes."""
    sources: tuple[Source, ...]
    zones_final: bool = False
    """Whether `zones` are all that will ever be: Google adds none for a generation that it retires.
    """
    flex_start: tuple[str, ...] = ()
    """The zones in which Google names the generation for flex-start."""
    doubt: str | None = None
    """What about TensorFlow on this generation has not been shown to work."""
    open_sizes: bool = False
    """Whether Google's table shows only the most common sizes of this generation."""
    listed: bool = True
    """Whether the catalog has this very size; otherwise it follows from the generation's rules."""


@dataclass(frozen=True)
class Host:
    """A machine type of Compute Engine that is a host of a TPU."""

    tpu: Accelerator
    """Its `disk_types` are those that the machine can boot from."""
    vcpus: int
    memory_gib: int
    image: str
    """PROJECT/FAMILY of Google's image for it."""
    python: str
    frameworks: tuple[str, ...]
    slices: tuple[str, ...]
    """Topologies of several such machines, which are connected with each other."""
    threads_per_core: int | None
    """What Google wants to be set; None: nothing."""
    quotas: Mapping[str, str]
    """What its chips count against: `standard`, `spot`, and as which `family` if it is shared."""

    def tpu_of(self, topology: str | None) -> Accelerator:
        """Return the TPU of as many machines as a topology needs, of one if it is unknown."""
        if topology not in self.slices:
            return self.tpu
        hosts = math.prod(int(side) for side in topology.split("x")) // self.tpu.chips
        return replace(
            self.tpu,
            topology=topology,
            chips=self.tpu.chips * hosts,
            cores=self.tpu.cores * hosts,
            hosts=hosts,
            hbm_gib=self.tpu.hbm_gib * hosts,
        )


@dataclass(frozen=True)
class Chip:
    """A chip of one generation at its best, as Google publishes it."""

    family: str
    peak_tflops: int
    hbm_gbps: int
    ici_gbps: int | None
    """Both directions of all its links; None where Google does not say."""
    clock_mhz: int
    """What the peak and the matrix units imply."""
    devices: int
    """How many devices, and so replicas, the chip is to a program."""
    sources: tuple[Source, ...]


class Proof(Enum):
    """What stands behind the name of a runtime."""

    DOCUMENTED = "documented"
    """Google names it, or its pattern with this version."""
    USED = "used"
    """A TPU with it was made in public."""
    INFERRED = "inferred"
    """It follows from Google's pattern; no public use is known."""


@dataclass(frozen=True)
class Runtime:
    """Software of a TPU VM."""

    name: str
    tensorflow: str | None
    """None: the runtime has no TensorFlow of its own."""
    families: tuple[str, ...]
    """None are named for a runtime that the catalog does not list."""
    serves_grpc: bool
    """Whether the workers serve gRPC without any help (the `-pod` runtimes)."""
    source: Source
    proof: Proof = Proof.DOCUMENTED
    broken: bool = False
    """Whether the image's own TensorFlow ends with a segmentation fault when it is imported."""
    python: str | None = None
    """Python of the image; None where it is not known."""
    listed: bool = True

    @property
    def pluggable(self) -> bool:
        """Whether TensorFlow finds the TPU through the PJRT plug-in in libtpu."""
        return self.tensorflow is None or "-pjrt" in self.name


@dataclass(frozen=True)
class Release:
    """One release of a package that the start-up scripts install."""

    version: str
    pythons: tuple[str, ...]
    """Versions of Python that have a wheel."""
    wheels: str | None
    """Address of the list that has what the package index lacks; None if it lacks nothing."""
    source: Source
    broken: str | None = None
    """Why it is of no use though it can be installed."""


@dataclass(frozen=True)
class NodeVersion:
    """A TensorFlow version of classic TPU nodes."""

    version: str
    families: tuple[str, ...]
    ended: date | None
    """When Google stopped offering it; None while it is offered."""
    source: Source


@dataclass(frozen=True)
class MachineType:
    """A machine type of Compute Engine."""

    name: str
    vcpus: int
    memory_gib: float
    source: Source


@dataclass(frozen=True)
class NetworkFacts:
    """Ranges and ports that Google fixes."""

    private_ranges: tuple[IPv4Network, ...]
    auto_mode_ranges: tuple[IPv4Network, ...]
    """Of the subnets of an auto-mode network, in all regions."""
    reserved_addresses: int
    """How many of a subnet's addresses no machine can have."""
    own_subnet_range: IPv4Network
    smallest_subnet_prefix: int
    iap_range: IPv4Network
    ssh_port: int
    health_check_ranges: tuple[IPv4Network, ...]
    grpc_port: int
    sources: tuple[Source, ...]


# --- Releases of TensorFlow that the start-up scripts can install, and the Python of the images

VM_PACKAGE = "tensorflow-cpu"
TPU_PACKAGE = "tensorflow-tpu"
JAX_PACKAGE = "tensorflow-cpu-jax"
"""That release of tensorflow-cpu, next to JAX with a TPU's library."""


def numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers, by which versions are ordered."""
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


class Packages:
    """The list in one file."""

    def __init__(self, path: Path) -> None:
        document = read_table(path)
        sources = {
            key: Source(entry["url"], entry["date"]) for key, entry in document["sources"].items()
        }
        wheels: str = document["wheels"]["url"]
        self._releases: Mapping[str, Mapping[str, Release]] = {
            package: {
                version: Release(
                    version,
                    tuple(entry["pythons"]),
                    wheels if entry.get("libtpu") == "list" else None,
                    sources[entry["source"]],
                    entry.get("broken"),
                )
                for entry in entries
                for version in entry["versions"]
            }
            for package, entries in document["packages"].items()
        }
        self._images: Mapping[str, str] = {
            image: entry["python"] for image, entry in document["images"].items()
        }
        self.oldest_tensorflow: str = document["oldest"]["tensorflow"]
        self.oldest_python: str = document["oldest"]["python"]
        self.sources = tuple(sources.values())

    def releases(self, package: str) -> Mapping[str, Release]:
        """Return the releases of a package by version, newest first."""
        return self._releases[package]

    def runs_with(self, tensorflow: str) -> bool:
        """Return whether the training package runs with a version of TensorFlow."""
        return numbers(tensorflow) >= numbers(self.oldest_tensorflow)

    def image_python(self, image: str) -> str | None:
        """Return the Python of an image of the VM; None if it is not known."""
        return self._images.get(image)


# --- Prices: exact decimal numbers with their sources; None where no source has one

_SPOT = ("spot", "preemptible")


def is_in(region: str, places: Iterable[str]) -> bool:
    """Return whether a region is one of some places: regions, or the first parts of their names."""
    return any(f"{region}-".startswith(f"{place}-") for place in places)


@dataclass(frozen=True)
class Price:
    """An amount in US dollars, and where it comes from."""

    amount: Decimal
    source: Source

    def times(self, factor: Decimal | int) -> "Price":
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


class Prices:
    """The price list in one file."""

    def __init__(self, path: Path) -> None:
        # No price passes through a float.
        document = read_texts(path)
        self._tpus, self._gpus, self._machines, self._disks, self._storage = (
            document[part] for part in ("tpus", "gpus", "machines", "disks", "storage")
        )
        self._operations, self._nat, self._keys = (
            document[part] for part in ("operations", "nat", "keys")
        )
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

    def _by_capacity(
        self, entries: Sequence[Mapping[str, Any]], region: str, capacity: str
    ) -> Price | None:
        """Return the price of an hour of one chip or device."""
        wanted = {
            "on-demand": ("onDemand",),
            "flex-start": ("flexStart",),
            "spot": _SPOT,
            "preemptible": _SPOT[::-1],
        }
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
