"""The catalog's entries as plain typed records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from enum import Enum
from ipaddress import IPv4Network


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
    """What about TensorFlow on this generation nobody has shown to work."""
    open_sizes: bool = False
    """Whether Google's table shows only the most common sizes of this generation."""
    listed: bool = True
    """Whether the catalog has this very size; otherwise it follows from the generation's rules."""


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
    """Somebody made a TPU with it in public."""
    INFERRED = "inferred"
    """It follows from Google's pattern; nobody was seen to use it."""


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
