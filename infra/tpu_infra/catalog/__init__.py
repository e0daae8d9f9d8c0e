"""Facts about Google Cloud: data files with their sources, read when they are first asked for."""

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from tpu_infra.catalog import entries, proofs

_RUNTIME_PREFIX = "tpu-vm-tf-"


class Catalog:
    """The catalog in one folder; every table is read at most once, and only if it is needed.

    Reading YAML takes longer than all else that a command does with the catalog.
    """

    def __init__(self, folder: Path = Path(__file__).parent) -> None:
        self._folder = folder

    @cached_property
    def accelerators(self) -> Mapping[str, entries.Accelerator]:
        """TPU types by name, smallest first within a family."""
        document = self._read("accelerators")
        sources = _sources(document)
        return {
            name: _accelerator(name, family, facts, entry, sources)
            for family, facts in document["families"].items()
            for name, entry in facts["types"].items()
        }

    @cached_property
    def hosts(self) -> Mapping[str, entries.Host]:
        """Machine types of Compute Engine with a TPU of their own, by name."""
        document = self._read("hosts")
        sources = _sources(document)
        return {
            name: entries.Host(
                _accelerator(name, family, facts, entry, sources),
                entry["vcpus"],
                entry["memoryGib"],
                facts["image"],
                facts["python"],
                tuple(facts["frameworks"]),
                tuple(entry.get("slices", ())),
                entry.get("threadsPerCore"),
                facts.get("quotas", {}),
            )
            for family, facts in document["families"].items()
            for name, entry in facts["types"].items()
        }

    def is_listed_only(self, name: str) -> bool:
        """Return whether Compute Engine lists a machine type with a TPU, and does not make it."""
        return name.partition("-")[0] in self._read("hosts")["listedOnly"]

    @cached_property
    def chips(self) -> Mapping[str, entries.Chip]:
        """What a chip of each generation can do at most, by family."""
        document = self._read("chips")
        sources = _sources(document)
        return {
            family: entries.Chip(
                family,
                facts["peakTflops"],
                facts["hbmGbps"],
                facts.get("iciGbps"),
                _clock_mhz(facts),
                facts["devices"],
                tuple(sources[key] for key in facts["sources"]),
            )
            for family, facts in document["chips"].items()
        }

    @cached_property
    def runtimes(self) -> Mapping[str, entries.Runtime]:
        """Software of TPU VMs by name."""
        document = self._read("runtimes")
        sources = _sources(document)
        broken = document["broken"]["versions"]
        proven = self.proofs.runtimes
        pythons = dict.fromkeys(document["pythons"]["versions"], document["pythons"]["python"])
        found = [
            entries.Runtime(
                name,
                version,
                tuple(entry["families"]),
                serves_grpc=suffix.startswith("-pod"),
                source=sources[entry["source"]],
                proof=entries.Proof.USED if name in proven else entries.Proof(entry["proof"]),
                broken=version in broken,
                python=pythons.get(version),
            )
            for entry in document["tpuVm"]
            for version in entry["versions"]
            for suffix in entry["suffixes"]
            for name in (f"{_RUNTIME_PREFIX}{version}{suffix}",)
        ]
        found += [
            entries.Runtime(
                entry["name"],
                None,
                tuple(entry["families"]),
                serves_grpc=False,
                source=sources[entry["source"]],
                python=entry["python"],
            )
            for entry in document["bare"]
        ]
        return {runtime.name: runtime for runtime in found}

    def accelerator(self, name: str, topology: str | None = None) -> entries.Accelerator | None:
        """Return a TPU type; one that is not listed too, if it may exist all the same.

        `topology` is that of machines of Compute Engine, whose type has that of one machine. A
        slice of several may also be named MACHINE:TOPOLOGY, as `tpu-training compile` names it.
        """
        if name in self.accelerators:
            return self.accelerators[name]
        machine, _, of_slice = name.partition(":")
        host = self.hosts.get(machine)
        if host is None:
            return unlisted_accelerator(name, self.accelerators)
        if of_slice and of_slice not in host.slices:
            return None
        return host.tpu_of(topology or of_slice)

    def runtime(self, name: str) -> entries.Runtime | None:
        """Return a runtime; one that is not listed too, if its name follows Google's pattern."""
        convention = next(iter(self.runtimes.values())).source
        return self.runtimes.get(name) or unlisted_runtime(name, convention)

    @cached_property
    def node_versions(self) -> Mapping[str, entries.NodeVersion]:
        """TensorFlow versions of classic TPU nodes, newest first."""
        document = self._read("runtimes")
        sources = _sources(document)
        return {
            version: entries.NodeVersion(
                version, tuple(entry["families"]), entry.get("ended"), sources[entry["source"]]
            )
            for entry in document["node"]
            for version in entry["versions"]
        }

    @cached_property
    def machine_types(self) -> Mapping[str, entries.MachineType]:
        """Machine types by name."""
        document = self._read("machines")
        sources = _sources(document)
        return {
            f"{series}-{vcpus}": entries.MachineType(
                f"{series}-{vcpus}",
                vcpus,
                facts.get("memoryGib", {}).get(vcpus, vcpus * facts["gibPerVcpu"]),
                sources[facts["source"]],
            )
            for series, facts in document["series"].items()
            for vcpus in facts["vcpus"]
        }

    def may_be_machine_type(self, name: str) -> bool:
        """Return whether a machine type that is not listed may exist all the same."""
        kinds = self._read("machines")["kinds"]
        series = {known.rpartition("-")[0] for known in self.machine_types}
        return is_machine_type_name(name, series, kinds)

    @cached_property
    def network(self) -> entries.NetworkFacts:
        """Ranges and ports that Google fixes."""
        document = self._read("network")
        return entries.NetworkFacts(
            private_ranges=tuple(map(IPv4Network, document["privateRanges"])),
            auto_mode_ranges=tuple(map(IPv4Network, document["autoModeRanges"])),
            reserved_addresses=document["reservedAddresses"],
            own_subnet_range=IPv4Network(document["ownSubnetRange"]),
            smallest_subnet_prefix=document["smallestSubnetPrefix"],
            iap_range=IPv4Network(document["iapRange"]),
            ssh_port=document["sshPort"],
            health_check_ranges=tuple(map(IPv4Network, document["healthCheckRanges"])),
            grpc_port=document["grpcPort"],
            sources=tuple(_sources(document).values()),
        )

    @cached_property
    def packages(self) -> entries.Packages:
        """Releases of TensorFlow that can be installed."""
        return entries.Packages(self._folder / "packages.yaml")

    @cached_property
    def proofs(self) -> proofs.Proofs:
        """What Google answered in the proofs that the catalog has."""
        return proofs.read(self._folder / "proofs")

    @cached_property
    def prices(self) -> entries.Prices:
        """What things cost."""
        return entries.Prices(self._folder / "prices.yaml")

    def _read(self, table: str) -> Any:
        return entries.read_table(self._folder / f"{table}.yaml")


def _sources(document: Mapping[str, Any]) -> dict[str, entries.Source]:
    return {
        key: entries.Source(entry["url"], entry["date"])
        for key, entry in document["sources"].items()
    }


def _accelerator(
    name: str,
    family: str,
    facts: Mapping[str, Any],
    entry: Mapping[str, Any],
    sources: Mapping[str, entries.Source],
) -> entries.Accelerator:
    chips = math.prod(int(side) for side in entry["topology"].split("x"))
    cited = dict.fromkeys([*entry.get("sources", ()), *facts["sources"]])
    # A size smaller than a host has one all the same; Google gives some sizes other hosts.
    return entries.Accelerator(
        name=name,
        family=family,
        topology=entry["topology"],
        chips=chips,
        cores=chips * facts["coresPerChip"],
        hosts=entry.get("hosts") or math.ceil(chips / facts["chipsPerHost"]),
        hbm_gib=chips * facts["hbmGibPerChip"],
        zones=tuple(entry.get("zones") or facts["zones"]),
        architectures=tuple(facts["architectures"]),
        cidr_prefix=entry.get("cidrPrefix"),
        grpc_worker=facts["grpcWorker"],
        disk_types=tuple(facts["diskTypes"]),
        data_disks=facts["disksPerHost"] - 1,
        sources=tuple(sources[key] for key in cited),
        zones_final=facts.get("zonesFinal", False),
        flex_start=tuple(facts.get("flexStart", ())),
        doubt=facts.get("doubt"),
        open_sizes=facts.get("openSizes", False),
    )


def _clock_mhz(facts: Mapping[str, Any]) -> int:
    """Return the clock at which the matrix units reach the peak: two operations each a cycle."""
    per_cycle: int = facts["matrixUnits"] * 2 * facts["matrixSide"] ** 2
    return round(float(facts["peakTflops"]) * 1e6 / per_cycle)


# --- What the catalog does not list and Google may offer all the same, by Google's rules for names
#
# Google adds sizes, runtimes and machine types at any time. To refuse them would stop people until
# the next release of this project; to accept every name would let a typing mistake cost an hour. So
# what follows the rules passes, with a warning, and the rest does not.

_TENSORFLOW = re.compile(
    r"tpu-vm-tf-(?P<version>(?P<major>\d+)\.(?P<minor>\d+)\.\d+)(?P<pod>-pod)?"
    r"(?P<api>-pjrt|-se)?(-[a-z0-9-]+)?"
)
_BARE = re.compile(r"(tpu-ubuntu\d{4}|tpu-vm|v\d+-alpha)(-[a-z0-9]+)*")
_MACHINE = re.compile(r"(?P<series>[a-z]\d+[a-z]?-(?P<kind>[a-z]+))(-\d+g?(-\w+)*)?")
_ZONE = re.compile(r"[a-z]+-[a-z]+\d+-(ai\d+)?[a-z]")
# From this release on the name of a runtime says which device API it has.
_NAMES_API = (2, 15)


def is_zone_name(name: str) -> bool:
    """Return whether a name has the form of Google's zones."""
    return bool(_ZONE.fullmatch(name))


def unlisted_accelerator(
    name: str, known: Mapping[str, entries.Accelerator]
) -> entries.Accelerator | None:
    """Return a size that the catalog does not list, of a generation whose table is not complete."""
    generation, _, size = name.rpartition("-")
    smallest = next((a for a in known.values() if a.name.startswith(f"{generation}-")), None)
    if smallest is None or not smallest.open_sizes or not size.isdecimal():
        return None
    hosts, left = divmod(int(size), smallest.cores)
    if left or not hosts or size.startswith("0"):
        return None
    return replace(
        smallest,
        name=name,
        topology="",
        chips=smallest.chips * hosts,
        cores=int(size),
        hosts=hosts,
        hbm_gib=smallest.hbm_gib * hosts,
        listed=False,
    )


def unlisted_runtime(name: str, source: entries.Source) -> entries.Runtime | None:
    """Return a runtime that the catalog does not list, if its name follows Google's pattern."""
    if found := _TENSORFLOW.fullmatch(name):
        new = (int(found["major"]), int(found["minor"])) >= _NAMES_API
        if new != bool(found["api"]):
            return None
        served = found["pod"] is not None
        return entries.Runtime(
            name, found["version"], (), served, source, entries.Proof.INFERRED, listed=False
        )
    if name.startswith("tpu-vm-tf") or not _BARE.fullmatch(name):
        return None
    return entries.Runtime(name, None, (), False, source, entries.Proof.INFERRED, listed=False)


def is_machine_type_name(name: str, series: Collection[str], kinds: Collection[str]) -> bool:
    """Return whether a name has the form of Google's machine types, of a series not listed."""
    found = _MACHINE.fullmatch(name)
    return found is not None and found["series"] not in series and found["kind"] in kinds


# --- What Vertex AI offers for custom jobs: its TPUs, their quotas, its containers

_VERTEX = Path(__file__).parent / "vertex.yaml"


@dataclass(frozen=True)
class VertexTpu:
    """A TPU of a custom job.

    Attributes:
        machine: the machineSpec of a worker pool.
        quota: the metric that it counts against, without the API's name.
        spot_quota: that of its spot capacity.
        hosts: how many machines it has, each of which runs the container.
        tensorflow: Google's own container with TensorFlow for it; None if there is none.
    """

    machine: Mapping[str, Any]
    quota: str
    spot_quota: str
    hosts: int = 1
    tensorflow: str | None = None


@lru_cache(maxsize=1)
def vertex_tpus() -> Mapping[str, VertexTpu]:
    """Return the TPUs by their type, such as v2-8."""
    return {name: VertexTpu(**about) for name, about in entries.read_table(_VERTEX)["tpus"].items()}


@lru_cache(maxsize=1)
def vertex_regions() -> tuple[str, ...]:
    """Return where custom jobs can have TPUs: the regions where Cloud TPU has one of theirs."""
    types = Catalog().accelerators
    zones = {zone for name in vertex_tpus() for zone in types[name].zones}
    return tuple(sorted({zone.rpartition("-")[0] for zone in zones}))


def why_not_on_vertex(kind: str) -> str:
    """Return why a type of TPU is not among them."""
    reasons: Mapping[str, str] = entries.read_table(_VERTEX)["notOffered"]
    return reasons.get(kind.rpartition("-")[0], "there is no such TPU")


def why_not_spot_on_vertex(tpu: VertexTpu) -> str | None:
    """Return why a TPU can't be a spot one; None if it can."""
    spot = entries.read_table(_VERTEX)["spot"]
    return str(spot["why"]) if tpu.hosts > spot["mostHosts"] else None


def vertex_plain_image() -> str:
    """Return the container for jobs that bring their framework along."""
    return str(entries.read_table(_VERTEX)["plainImage"])
