"""What Google offers: TPU types, their zones, runtime and TensorFlow versions."""

import math
from dataclasses import dataclass
from functools import lru_cache

from localcloud import data

# Those of classic nodes that have no version of TensorFlow in their names.
_OTHER_NODE_VERSIONS = ("nightly", "pytorch-2.0")
# Runtimes that Google takes though its lists for people name none of them: Container-Optimized OS,
# with which a v5p-8 became READY in an answer of 2025.
_OTHER_RUNTIMES = ("tpu-vm-cos-stable",)
# Google gives a classic node twice as many addresses as it has hosts, and at least a /29.
_LONGEST_PREFIX = 29


@dataclass(frozen=True)
class Accelerator:
    """A TPU type.

    Attributes:
        generation: such as `v5litepod`.
        size: cores or chips, as the name counts them; quotas count the same.
        topology: such as `2x2`.
        hosts: how many machines a slice has.
        zones: where it is offered.
        disks: kinds of data disk that a host takes, and `disk_count` how many.
        flex_start: whether it can be asked for by flex-start.
    """

    generation: str
    size: int
    topology: str
    hosts: int
    zones: tuple[str, ...]
    disks: tuple[str, ...]
    disk_count: int
    flex_start: bool = False

    @property
    def name(self) -> str:
        """The type as callers name it, such as `v2-8`."""
        return f"{self.generation}-{self.size}"

    @property
    def type(self) -> str:
        """The generation as AcceleratorConfig has it."""
        return self.generation.upper().replace("LITEPOD", "LITE_POD")

    @property
    def devices(self) -> int:
        """How many devices TensorFlow shows of one host.

        They are the TensorCores of v2 and v3, and the chips of later generations.
        """
        chips = math.prod(map(int, self.topology.split("x")))
        return chips * (2 if self.generation in ("v2", "v3") else 1) // self.hosts

    @property
    def prefix(self) -> int:
        """The longest CIDR prefix that has room for the slice as a classic node."""
        return min(_LONGEST_PREFIX, 32 - (2 * self.hosts - 1).bit_length())

    def metric(self, *, preemptible: bool) -> str:
        """Return the quota that a slice counts against."""
        spot = "Preemptible" if preemptible else ""
        if self.generation in ("v2", "v3", "v4"):
            pod = "Pod" if self.hosts > 1 or self.generation == "v4" else ""
            return f"TPU{self.generation.upper()}s{spot}{pod}PerProjectPerZoneForTPUAPI"
        family = {"v5litepod": "V5s{}Litepod", "v5p": "V5P{}", "v6e": "V6E{}"}[self.generation]
        serving = "Serving" * self._serves
        return f"TPU{family.format(spot)}{serving}PerProjectPerZoneForTPUAPI"

    def quota_metric(self, *, preemptible: bool) -> str:
        """Return the metric of that quota in Service Usage.

        Google's page on quotas names those of v5e, users' scripts (2026-08) those of v4, v5p and
        v6e; the names of v2's and v3's are inferred.
        """
        family = {"v5litepod": "v5s-litepod", "v4": "v4s"}.get(self.generation, self.generation)
        pod = "-pod" if self.generation in ("v2", "v3") and self.hosts > 1 else ""
        kind = pod + "-serving" * self._serves + "-preemptible" * preemptible
        return f"tpu.googleapis.com/tpu-{family}{kind}"

    @property
    def _serves(self) -> bool:
        """Whether it draws on v5e's quota for serving: v5litepod-1, -4 and -8, of one host, do.

        Source: cloud.google.com/tpu/docs/quota, a copy of 2025; users' 429s of 2025-08 to 2026-08.
        """
        return self.generation == "v5litepod" and self.hosts == 1


@lru_cache(maxsize=1)
def accelerators() -> dict[str, Accelerator]:
    """Return every TPU type by name."""
    found = {}
    for generation, family in data.load("tpu-accelerators").items():
        for size, about in family["sizes"].items():
            accelerator = Accelerator(
                generation=generation,
                size=size,
                topology=about["topology"],
                hosts=about["hosts"],
                zones=tuple(about.get("zones", family["zones"])),
                disks=tuple(family["disks"]),
                disk_count=family["diskCount"],
                flex_start=family.get("flexStart", False),
            )
            found[accelerator.name] = accelerator
    return found


@lru_cache(maxsize=1)
def zones() -> tuple[str, ...]:
    """Return the zones with TPUs, sorted."""
    return tuple(sorted({zone for a in accelerators().values() for zone in a.zones}))


def in_zone(zone: str) -> list[Accelerator]:
    """Return the types that a zone offers, by generation and size."""
    return [accelerator for accelerator in accelerators().values() if zone in accelerator.zones]


@lru_cache(maxsize=1)
def runtime_versions() -> tuple[str, ...]:
    """Return the runtime versions of TPU VMs."""
    return (*sorted(data.load("tpu-runtimes")["runtimes"]), *_OTHER_RUNTIMES)


@lru_cache(maxsize=1)
def tensorflow_versions() -> tuple[str, ...]:
    """Return the TensorFlow versions of classic nodes, newest first."""
    return (*_OTHER_NODE_VERSIONS, *data.load("tpu-runtimes")["nodes"])


def runs_on(runtime: str, accelerator: Accelerator) -> bool:
    """Return whether a runtime version supports a TPU type."""
    known = data.load("tpu-runtimes")["runtimes"]
    return runtime in _OTHER_RUNTIMES or accelerator.generation in known[runtime]


def serves_grpc(runtime: str) -> bool:
    """Return whether the runtime's workers serve gRPC: those of TensorFlow with `-pod` do."""
    return runtime.startswith("tpu-vm-tf-") and "-pod" in runtime
