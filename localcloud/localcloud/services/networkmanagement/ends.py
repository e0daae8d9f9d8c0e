"""The two ends that a Connectivity Test names, found among the machines."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address

from localcloud.core.call import Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services.compute.api import STORE
from localcloud.services.compute.links import path_from, path_of
from localcloud.services.networkmanagement import machines, routes
from localcloud.services.networkmanagement.machines import Machine
from localcloud.services.networkmanagement.packets import Packet, Place

PROTOCOLS = ("TCP", "UDP", "ICMP", "ESP", "SCTP", "GRE")
WITH_PORTS = ("TCP", "UDP", "SCTP")
_PORT = 80
_KNOWN = {"instance", "ipAddress", "network", "networkType", "port", "projectId"}
_INSTANCE = re.compile(r"projects/[^/]+/zones/[^/]+/instances/[^/]+")


@dataclass
class NotFound(Exception):
    """An end that doesn't exist: the analysis aborts with a cause."""

    cause: str
    resource: str


def check(test: Json) -> None:
    """Refuse a test that names too little or what can't be tested here.

    Raises:
        ApiError: 400, or 501 for ends that the local cloud doesn't have.
    """
    for side in ("source", "destination"):
        end = test.get(side) or {}
        unknown = sorted(set(end) - _KNOWN)
        if unknown:
            raise ApiError(501, f"the local cloud has no {', '.join(unknown)} to test ({side})")
        if not end.get("instance") and not end.get("ipAddress"):
            raise invalid(f"{side}: one of instance and ip_address must be given.")
        _require_address(side, end.get("ipAddress", ""))
        if end.get("instance") and not _INSTANCE.fullmatch(_path(end["instance"])):
            raise invalid(f"{side}.instance: '{end['instance']}' is no URI of an instance.")
    protocol = test.get("protocol") or "TCP"
    if protocol not in PROTOCOLS:
        raise invalid(f"protocol: '{protocol}' is none of {', '.join(PROTOCOLS)}.")
    port = test["destination"].get("port") or _PORT
    if not 0 < port < 65536:
        raise invalid(f"destination.port: {port} is not between 1 and 65535.")


def packet(cloud: Cloud, project: str, test: Json) -> Packet:
    """Return the packet that a checked test asks about.

    Raises:
        NotFound: for an instance or network that doesn't exist, or a source in none.
    """
    protocol = test.get("protocol") or "TCP"
    everything = list(machines.all_of(cloud))
    source = _place(cloud, project, everything, test["source"], "")
    if source.private and not source.network:
        raise NotFound("NO_SOURCE_LOCATION", "")
    destination = _place(cloud, project, everything, test["destination"], source.network)
    port = test["destination"].get("port") or _PORT if protocol in WITH_PORTS else None
    return Packet(source, destination, protocol.lower(), port)


def _place(cloud: Cloud, project: str, known: list[Machine], end: Json, near: str) -> Place:
    network = _network(cloud, project, end.get("network", "")) or near
    if end.get("instance"):
        return Place.of(_instance(known, _path(end["instance"]), end, network))
    address = end["ipAddress"]
    for machine in known:
        if address == machine.external:
            return Place.of(machine)
        if address == machine.address and network in ("", machine.network):
            return Place.of(machine)
    if end.get("networkType") == "INTERNET" or not Place(address, "").private:
        return Place(address, "")
    if not network:
        subnet = routes.subnet_at(cloud, end.get("projectId") or project, address)
        network = path_from(subnet["network"]) if subnet else ""
    return Place(address, network)


def _instance(known: list[Machine], path: str, end: Json, network: str) -> Machine:
    wanted = end.get("ipAddress")
    own = [machine for machine in known if machine.path == path]
    fitting = [m for m in own if not wanted or wanted in (m.address, m.external)]
    if end.get("network"):
        fitting = [machine for machine in fitting if machine.network == network]
    if not fitting:
        cause = "INVALID_ARGUMENT" if own else "VM_INSTANCE_CONFIG_NOT_FOUND"
        raise NotFound(cause, path)
    return fitting[0]


def _network(cloud: Cloud, project: str, reference: str) -> str:
    if not reference:
        return ""
    path = path_of(reference, project)
    if cloud.store.get(STORE, path) is None:
        raise NotFound("NETWORK_CONFIG_NOT_FOUND", path)
    return path


def _path(reference: str) -> str:
    found = re.search(r"projects/.*", reference)
    return found.group(0) if found else reference


def _require_address(side: str, text: str) -> None:
    if text:
        try:
            IPv4Address(text)
        except AddressValueError as error:
            raise invalid(f"{side}.ip_address: '{text}' is no IPv4 address: {error}.") from None
