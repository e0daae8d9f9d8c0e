"""The catalog's entries as plain typed records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
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


@dataclass(frozen=True)
class Runtime:
    """Software of a TPU VM."""

    name: str
    tensorflow: str | None
    """None: the runtime has no TensorFlow of its own."""
    families: tuple[str, ...]
    serves_grpc: bool
    """Whether the workers serve gRPC without any help (the `-pod` runtimes)."""
    source: Source


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
    mesh_port: int
    sources: tuple[Source, ...]
