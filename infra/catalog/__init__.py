"""Facts about Google Cloud: data files with their sources, read when they are first asked for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from infra.catalog import unlisted
from infra.catalog.model import (
    Accelerator,
    Chip,
    MachineType,
    NetworkFacts,
    NodeVersion,
    Proof,
    Runtime,
    Source,
)
from infra.catalog.packages import Packages
from infra.catalog.prices import Prices
from infra.catalog.tables import read

_RUNTIME_PREFIX = "tpu-vm-tf-"


class Catalog:
    """The catalog in one folder; every table is read at most once, and only if it is needed."""

    def __init__(self, folder: Path = Path(__file__).parent) -> None:
        self._folder = folder

    @cached_property
    def accelerators(self) -> Mapping[str, Accelerator]:
        """TPU types by name, smallest first within a family."""
        document = self._read("accelerators")
        sources = _sources(document)
        return {
            name: _accelerator(name, family, facts, entry, sources)
            for family, facts in document["families"].items()
            for name, entry in facts["types"].items()
        }

    @cached_property
    def chips(self) -> Mapping[str, Chip]:
        """What a chip of each generation can do at most, by family."""
        document = self._read("chips")
        sources = _sources(document)
        return {
            family: Chip(
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
    def runtimes(self) -> Mapping[str, Runtime]:
        """Software of TPU VMs by name."""
        document = self._read("runtimes")
        sources = _sources(document)
        broken = document["broken"]["versions"]
        pythons = dict.fromkeys(document["pythons"]["versions"], document["pythons"]["python"])
        found = [
            Runtime(
                f"{_RUNTIME_PREFIX}{version}{suffix}",
                version,
                tuple(entry["families"]),
                serves_grpc=suffix.startswith("-pod"),
                source=sources[entry["source"]],
                proof=Proof(entry["proof"]),
                broken=version in broken,
                python=pythons.get(version),
            )
            for entry in document["tpuVm"]
            for version in entry["versions"]
            for suffix in entry["suffixes"]
        ]
        found += [
            Runtime(
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

    def accelerator(self, name: str) -> Accelerator | None:
        """Return a TPU type; one that is not listed too, if it may exist all the same."""
        return self.accelerators.get(name) or unlisted.accelerator(name, self.accelerators)

    def runtime(self, name: str) -> Runtime | None:
        """Return a runtime; one that is not listed too, if its name follows Google's pattern."""
        convention = next(iter(self.runtimes.values())).source
        return self.runtimes.get(name) or unlisted.runtime(name, convention)

    @cached_property
    def node_versions(self) -> Mapping[str, NodeVersion]:
        """TensorFlow versions of classic TPU nodes, newest first."""
        document = self._read("runtimes")
        sources = _sources(document)
        return {
            version: NodeVersion(
                version, tuple(entry["families"]), entry.get("ended"), sources[entry["source"]]
            )
            for entry in document["node"]
            for version in entry["versions"]
        }

    @cached_property
    def machine_types(self) -> Mapping[str, MachineType]:
        """Machine types by name."""
        document = self._read("machines")
        sources = _sources(document)
        return {
            f"{series}-{vcpus}": MachineType(
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
        return unlisted.may_be_machine_type(name, series, kinds)

    @cached_property
    def network(self) -> NetworkFacts:
        """Ranges and ports that Google fixes."""
        document = self._read("network")
        return NetworkFacts(
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
    def packages(self) -> Packages:
        """Releases of TensorFlow that can be installed."""
        return Packages(self._folder / "packages.yaml")

    @cached_property
    def prices(self) -> Prices:
        """What things cost."""
        return Prices(self._folder / "prices.yaml")

    def _read(self, table: str) -> Any:
        return read(self._folder / f"{table}.yaml")


def _sources(document: Mapping[str, Any]) -> dict[str, Source]:
    return {key: Source(entry["url"], entry["date"]) for key, entry in document["sources"].items()}


def _accelerator(
    name: str,
    family: str,
    facts: Mapping[str, Any],
    entry: Mapping[str, Any],
    sources: Mapping[str, Source],
) -> Accelerator:
    chips = math.prod(int(side) for side in entry["topology"].split("x"))
    cited = dict.fromkeys([*entry.get("sources", ()), *facts["sources"]])
    return Accelerator(
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
