"""Which firewall rule decides about a packet.

Source: cloud.google.com/firewall/docs/firewalls. Of the rules that apply to the machine and match
the packet, the lowest priority number decides; a rule that denies wins over one that allows at the
same number. Behind all rules, every network allows what leaves and denies what comes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, ip_network

from localcloud.core.cloud import Cloud
from localcloud.core.store import Record
from localcloud.services.compute.api import STORE
from localcloud.services.compute.links import url_of
from localcloud.services.networkmanagement.machines import Machine
from localcloud.services.networkmanagement.packets import Packet, Place

EGRESS, INGRESS = "EGRESS", "INGRESS"
IMPLIED_PRIORITY = 65535
# IANA's numbers, which rules may have in place of names.
_NUMBERS = {"icmp": "1", "ipip": "94", "tcp": "6", "udp": "17", "esp": "50", "ah": "51"} | {
    "sctp": "132"
}


@dataclass(frozen=True)
class Verdict:
    """What the firewall does with a packet; `rule` is None for an implied rule."""

    allowed: bool
    direction: str
    rule: Record | None


def judge(cloud: Cloud, network: str, direction: str, packet: Packet) -> Verdict:
    """Return what the firewall of the network at path `network` does with a packet.

    `direction` says which end's machine the rules are for: the destination's for INGRESS.
    """
    decided = min(
        (
            (rule["priority"], bool(rule.get("allowed")), rule["name"], rule)
            for rule in _rules(cloud, network, direction)
            if _applies(rule, packet) and _matches(rule, packet)
        ),
        default=None,
        key=lambda found: found[:3],
    )
    if decided is None:
        return Verdict(direction == EGRESS, direction, None)
    return Verdict(decided[1], direction, decided[3])


def _rules(cloud: Cloud, network: str, direction: str) -> list[Record]:
    project = "/".join(network.split("/")[:2])
    return [
        rule
        for _, rule in cloud.store.items(STORE, f"{project}/global/firewalls/")
        if rule["network"] == url_of(network)
        and rule["direction"] == direction
        and not rule["disabled"]
    ]


def _applies(rule: Record, packet: Packet) -> bool:
    """Return whether a rule is for the machine: all machines without targets."""
    ingress = rule["direction"] == INGRESS
    machine = (packet.destination if ingress else packet.source).machine
    tags, accounts = rule.get("targetTags"), rule.get("targetServiceAccounts")
    if not tags and not accounts:
        return True
    return machine is not None and _is_one(machine, tags, accounts)


def _matches(rule: Record, packet: Packet) -> bool:
    if not any(_carries(entry, packet) for entry in rule.get("allowed") or rule["denied"]):
        return False
    destinations = rule.get("destinationRanges")
    if destinations and not _within(packet.destination, destinations):
        return False
    ranges = rule.get("sourceRanges")
    tags, accounts = rule.get("sourceTags"), rule.get("sourceServiceAccounts")
    if not ranges and not tags and not accounts:
        return True
    machine = packet.source.machine
    # Tags and accounts are those of a machine's own interface in this very network.
    own = machine is not None and url_of(machine.network) == rule["network"] and not machine.peered
    return bool(ranges and _within(packet.source, ranges)) or bool(
        machine and own and _is_one(machine, tags, accounts)
    )


def _is_one(machine: Machine, tags: list[str] | None, accounts: list[str] | None) -> bool:
    return bool(machine.tags & set(tags or ())) or machine.account in (accounts or ())


def _within(place: Place, ranges: list[str]) -> bool:
    address = IPv4Address(place.address)
    return any(address in ip_network(text, strict=False) for text in ranges)


def _carries(entry: Record, packet: Packet) -> bool:
    protocol = entry["IPProtocol"].lower()
    if protocol not in ("all", packet.protocol, _NUMBERS.get(packet.protocol)):
        return False
    ports = entry.get("ports")
    return not ports or packet.port is None or any(_holds(text, packet.port) for text in ports)


def _holds(ports: str, port: int) -> bool:
    first, _, last = ports.partition("-")
    return int(first) <= port <= int(last or first)
