"""Which route a packet takes out of a machine.

Source: cloud.google.com/vpc/docs/routes#routeselection. The route of a subnet comes first; of the
others the longest prefix, then the lowest priority number. Routes with tags are for machines that
have one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network

from localcloud.core.cloud import Cloud
from localcloud.core.store import Record
from localcloud.services.compute.api import STORE
from localcloud.services.compute.links import last, path_from, url_of
from localcloud.services.compute.networks import subnets
from localcloud.services.compute.subnetworks import ranges
from localcloud.services.networkmanagement.packets import Packet
from localcloud.services.tpu.api import NODE

SUBNET, STATIC, PEERING = "SUBNET", "STATIC", "PEERING_SUBNET"
GATEWAY = "NEXT_HOP_INTERNET_GATEWAY"


@dataclass(frozen=True)
class Route:
    """A route; `path` is empty for one of Google's own, `hop_path` for one to a subnet."""

    kind: str
    name: str
    range: str
    hop: str
    hop_path: str
    path: str = ""
    priority: int = 0


def find(cloud: Cloud, network: str, packet: Packet) -> Route | None:
    """Return the route by which a packet leaves its machine in the network at path `network`."""
    address = IPv4Address(packet.destination.address)
    for subnet in subnets(cloud, network):
        for block in ranges(subnet):
            if address in block:
                name = f"default-route-{subnet['id']}"
                path = f"{'/'.join(network.split('/')[:2])}/global/routes/{name}"
                return Route(SUBNET, name, str(block), "NEXT_HOP_NETWORK", "", path)
    return _to_peer(cloud, network, address) or _static(cloud, network, packet)


def subnet_at(cloud: Cloud, project: str, address: str, network: str = "") -> Record | None:
    """Return a project's subnetwork, in one network or any, that an address lies in."""
    for path, record in cloud.store.items(STORE, f"projects/{project}/regions/"):
        near = "/subnetworks/" in path and record["network"].endswith(network)
        if near and IPv4Address(address) in ranges(record)[0]:
            return record
    return None


def _to_peer(cloud: Cloud, network: str, address: IPv4Address) -> Route | None:
    for _, node in cloud.store.items(NODE):
        block = node.get("cidrBlock") if node["apiVersion"] == "V1" else None
        if node["_network"] == network and block and address in IPv4Network(block):
            return Route(PEERING, "peering-route", block, "NEXT_HOP_PEERING", "")
    return None


def _static(cloud: Cloud, network: str, packet: Packet) -> Route | None:
    machine = packet.source.machine
    tags = machine.tags if machine else frozenset()
    project = "/".join(network.split("/")[:2])
    found = [
        (-IPv4Network(record["destRange"]).prefixlen, record["priority"], path, record)
        for path, record in cloud.store.items(STORE, f"{project}/global/routes/")
        if record["network"] == url_of(network)
        and IPv4Address(packet.destination.address) in IPv4Network(record["destRange"])
        and (not record.get("tags") or tags & set(record["tags"]))
    ]
    if not found:
        return None
    _, priority, path, record = min(found, key=lambda entry: entry[:3])
    hop, hop_path = _hop(record)
    return Route(STATIC, record["name"], record["destRange"], hop, hop_path, path, priority)


def _hop(record: Record) -> tuple[str, str]:
    if "nextHopGateway" in record:
        return GATEWAY, path_from(record["nextHopGateway"])
    if "nextHopInstance" in record:
        return "NEXT_HOP_INSTANCE", path_from(record["nextHopInstance"])
    if "nextHopIp" in record:
        return "NEXT_HOP_IP", record["nextHopIp"]
    return "NEXT_HOP_TYPE_UNSPECIFIED", ""


def nat_of(cloud: Cloud, subnet: str) -> tuple[str, str] | None:
    """Return the router's path and the name of the Cloud NAT that serves a subnet, or None."""
    record = cloud.store.get(STORE, subnet) or {}
    if not record:
        return None
    project, region = subnet.split("/")[1], last(record["region"])
    for path, router in cloud.store.items(STORE, f"projects/{project}/regions/{region}/routers/"):
        for nat in router.get("nats", []):
            if router["network"] == record["network"] and _serves(nat, record):
                return path, nat["name"]
    return None


def _serves(nat: Record, subnet: Record) -> bool:
    if nat["sourceSubnetworkIpRangesToNat"] != "LIST_OF_SUBNETWORKS":
        return True
    return subnet["selfLink"] in [entry["name"] for entry in nat.get("subnetworks", [])]
