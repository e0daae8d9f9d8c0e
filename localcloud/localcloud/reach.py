"""Answers `reach`: does a machine reach another at a port, and by which rules?

The ends are named as people call them; the analysis is that of Connectivity Tests.
"""

from __future__ import annotations

from ipaddress import AddressValueError, IPv4Address

from localcloud.core.call import Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services.networkmanagement import machines, trace
from localcloud.services.networkmanagement.ends import PROTOCOLS, WITH_PORTS
from localcloud.services.networkmanagement.machines import Machine
from localcloud.services.networkmanagement.packets import Packet, Place
from localcloud.services.tpu import hosts


def answer(cloud: Cloud, source: str, destination: str, protocol: str) -> Json:
    """Return both ends as people call them, and the API's ReachabilityDetails.

    Args:
        source: name of a VM, of a TPU (its host 0), `TPU/HOST`, or an address.
        destination: the same with `:PORT`, and `grpc://` before it or not.
        protocol: such as `tcp`.

    Raises:
        ApiError: 400 for a malformed or ambiguous end, 404 for one that doesn't exist.
    """
    if protocol.upper() not in PROTOCOLS:
        raise invalid(f"protocol {protocol!r} is none of {', '.join(PROTOCOLS).lower()}")
    known = list(machines.all_of(cloud))
    name, port = _split(destination.removeprefix("grpc://"), protocol)
    to, port = _destination(known, name, port)
    start = _place(known, source)
    # An address alone lies in the network that the other end is in.
    start = _in_network_of(start, to)
    packet = Packet(start, _in_network_of(to, start), protocol.lower(), port)
    return {
        "source": _shown(packet.source),
        "destination": _shown(packet.destination),
        "port": port,
        "protocol": packet.protocol,
        "reachabilityDetails": trace.analyse(cloud, packet),
    }


def _split(text: str, protocol: str) -> tuple[str, int | None]:
    if protocol.upper() not in WITH_PORTS:
        return text, None
    name, _, port = text.rpartition(":")
    if not name or not port.isdecimal() or not 0 < int(port) < 65536:
        raise invalid(f"destination {text!r} is not NAME:PORT with a port of 1 to 65535")
    return name, int(port)


def _destination(known: list[Machine], name: str, port: int | None) -> tuple[Place, int | None]:
    for machine in known:
        if machine.served == (name, port):
            # What the API reports here is where Google's TPUs listen at the standard port.
            return Place.of(machine), hosts.STANDARD
    return _place(known, name), port


def _place(known: list[Machine], name: str) -> Place:
    wanted = {name, f"{name}/0", f"{name}/hosts/0"}
    found = [machine for machine in known if wanted & {machine.name, machine.path}]
    if len(found) > 1:
        listed = ", ".join(machine.path for machine in found)
        raise invalid(f"{name!r} may be any of {listed}; name one in full")
    if found:
        return Place.of(found[0])
    try:
        address = str(IPv4Address(name))
    except AddressValueError:
        listed = ", ".join(sorted(machine.name for machine in known)) or "none"
        raise ApiError(404, f"no machine is called {name}; there are: {listed}") from None
    having = [m for m in known if address in (m.address, m.external) and not m.served]
    having += [m for m in known if address == m.address and m.served]
    return Place.of(having[0]) if len(having) == 1 else Place(address, "")


def _in_network_of(place: Place, other: Place) -> Place:
    if place.machine or place.service or not place.private:
        return place
    return Place(place.address, other.network)


def _shown(place: Place) -> str:
    return f"{place.machine.name} ({place.address})" if place.machine else place.address
