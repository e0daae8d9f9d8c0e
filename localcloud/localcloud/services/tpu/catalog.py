"""What Google offers: TPU types, their zones, runtime and TensorFlow versions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

_DATA = Path(__file__).parents[2] / "data"
# Google gives a classic node twice as many addresses as it has hosts, and at least a /29.
_LONGEST_PREFIX = 29


@dataclass(frozen=True)
class Accelerator:
    """A TPU type.

    Attributes:
        name: such as `v2-8`.
        generation: such as `v5litepod`.
        type: as AcceleratorConfig has it.
        topology: such as `2x2`.
        size: cores or chips, as the name counts them; quotas count the same.
        hosts: how many machines a slice has.
        devices: logical devices of one host.
        zones: where it is to be had.
        disks: kinds of data disk that a host takes, and `disk_count` how many.
    """

    name: str
    generation: str
    type: str
    topology: str
    size: int
    hosts: int
    devices: int
    zones: tuple[str, ...]
    disks: tuple[str, ...]
    disk_count: int

    @property
    def prefix(self) -> int:
        """The longest CIDR prefix that has room for the slice as a classic node."""
        return min(_LONGEST_PREFIX, 32 - (2 * self.hosts - 1).bit_length())

    def metric(self, *, preemptible: bool) -> str:
        """The quota that a slice counts against."""
        spot = "Preemptible" if preemptible else ""
        if self.generation in ("v2", "v3", "v4"):
            pod = "Pod" if self.hosts > 1 or self.generation == "v4" else ""
            return f"TPU{self.generation.upper()}s{spot}{pod}PerProjectPerZoneForTPUAPI"
        family = {"v5litepod": "V5s{}Litepod", "v5p": "V5P{}", "v6e": "V6E{}"}[self.generation]
        return f"TPU{family.format(spot)}PerProjectPerZoneForTPUAPI"


def _load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((_DATA / name).read_text(encoding="utf-8"))
    return loaded


@lru_cache(maxsize=1)
def accelerators() -> dict[str, Accelerator]:
    """Every TPU type by name."""
    found = {}
    for generation, family in _load("tpu-accelerators.yaml").items():
        for size, about in family["sizes"].items():
            name = f"{generation}-{size}"
            found[name] = Accelerator(
                name=name,
                generation=generation,
                type=family["type"],
                topology=about["topology"],
                size=size,
                hosts=about["hosts"],
                devices=about.get("devices", family["devices"]),
                zones=tuple(about.get("zones", family["zones"])),
                disks=tuple(family["disks"]),
                disk_count=family["diskCount"],
            )
    return found


@lru_cache(maxsize=1)
def zones() -> tuple[str, ...]:
    """The zones with TPUs, sorted."""
    return tuple(sorted({zone for a in accelerators().values() for zone in a.zones}))


def in_zone(zone: str) -> list[Accelerator]:
    """The types to be had in a zone, by generation and size."""
    return [accelerator for accelerator in accelerators().values() if zone in accelerator.zones]


@lru_cache(maxsize=1)
def _runtimes() -> dict[str, tuple[str, ...]]:
    """The runtime versions of TPU VMs with the generations that each runs on."""
    data = _load("tpu-runtimes.yaml")
    found = {name: tuple(generations) for name, generations in data["other"].items()}
    for entry in data["tensorflow"]:
        for version in entry["versions"]:
            for name in entry["names"]:
                for pod in ("", "-pod"):
                    found[f"tpu-vm-tf-{version}{pod}{name}"] = tuple(entry["generations"])
    return found


@lru_cache(maxsize=1)
def runtime_versions() -> tuple[str, ...]:
    """The runtime versions of TPU VMs."""
    return tuple(sorted(_runtimes()))


@lru_cache(maxsize=1)
def tensorflow_versions() -> tuple[str, ...]:
    """The TensorFlow versions of classic nodes, newest first."""
    return tuple(reversed(_load("tpu-runtimes.yaml")["nodes"]))


def runs_on(runtime: str, accelerator: Accelerator) -> bool:
    """Whether a runtime version supports a TPU type."""
    return accelerator.generation in _runtimes()[runtime]


def serves_grpc(runtime: str) -> bool:
    """Whether the runtime's workers serve gRPC by themselves: the `-pod` ones of TensorFlow do."""
    return runtime.startswith("tpu-vm-tf-") and "-pod" in runtime
