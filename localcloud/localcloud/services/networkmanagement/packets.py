"""A packet whose way is asked about, and where it comes from and goes to."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from localcloud.services.networkmanagement.machines import Machine

# Where Google's own probers and forwarders come from; every network has a way back to them.
# Sources: cloud.google.com/iap/docs/using-tcp-forwarding,
# cloud.google.com/load-balancing/docs/health-check-concepts#ip-ranges.
_SERVICES = {
    "IAP": (IPv4Network("35.235.240.0/20"),),
    "GFE_PROXY_OR_HEALTH_CHECK_PROBER": (
        IPv4Network("35.191.0.0/16"),
        IPv4Network("130.211.0.0/22"),
    ),
}
_PRIVATE = [IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]


@dataclass(frozen=True)
class Place:
    """One end of a packet's way: a machine, or an address that no machine has.

    Attributes:
        network: path of the network that an internal address is in; empty for the internet.
    """

    address: str
    network: str
    machine: Machine | None = None

    @classmethod
    def of(cls, machine: Machine) -> Place:
        """Return the place of a machine."""
        return cls(machine.address, machine.network, machine)

    @property
    def private(self) -> bool:
        """Whether the address is one of RFC 1918."""
        return any(IPv4Address(self.address) in block for block in _PRIVATE)

    @property
    def service(self) -> str:
        """The service of Google's that the address belongs to, or empty."""
        address = IPv4Address(self.address)
        found = (name for name, blocks in _SERVICES.items() if any(address in b for b in blocks))
        return next(found, "")


@dataclass(frozen=True)
class Packet:
    """What is sent.

    Attributes:
        protocol: in lower case, such as `tcp`.
        port: of the destination; None for protocols without ports.
    """

    source: Place
    destination: Place
    protocol: str
    port: int | None
