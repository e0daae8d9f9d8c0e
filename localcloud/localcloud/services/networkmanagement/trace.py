"""The way of a packet through the networks, step by step.

Source of the states and causes: the discovery document, and
cloud.google.com/network-intelligence-center/docs/connectivity-tests/concepts/state-tables.
"""

from __future__ import annotations

from collections.abc import Iterator

from localcloud.core.call import Json
from localcloud.core.clock import rfc3339
from localcloud.core.cloud import Cloud
from localcloud.services.networkmanagement import routes, steps
from localcloud.services.networkmanagement.firewall import EGRESS, INGRESS, Verdict, judge
from localcloud.services.networkmanagement.packets import Packet

# Nobody sees behind a peering: that Google's network takes what a TPU node serves is documented
# (cloud.google.com/tpu/docs/internal-ip-blocks), what this API calls it is not.
_RESULTS = {
    "DELIVER": "REACHABLE",
    "FORWARD": "REACHABLE",
    "DROP": "UNREACHABLE",
    "ABORT": "UNDETERMINED",
}


def analyse(cloud: Cloud, packet: Packet, *, bypass_firewall: bool = False) -> Json:
    """Return whether a packet arrives, and why, as ReachabilityDetails."""
    taken = list(_way(cloud, packet, bypass_firewall))
    return details(cloud, taken, steps.endpoints(packet))


def details(cloud: Cloud, taken: list[Json], ends: Json) -> Json:
    """Return ReachabilityDetails of one trace, whose last step decides."""
    return {
        "result": _RESULTS[taken[-1]["state"]],
        "verifyTime": rfc3339(cloud.clock.now()),
        "traces": [{"endpointInfo": ends, "steps": taken, "forwardTraceId": 1}],
    }


def _way(cloud: Cloud, packet: Packet, bypass: bool) -> Iterator[Json]:
    sender, network = packet.source.machine, packet.source.network
    project = network.split("/")[1] if network else ""
    yield steps.start(packet, routes.subnet_at(cloud, project, packet.source.address, network))
    if sender and not sender.running:
        yield steps.drop("INSTANCE_NOT_RUNNING", sender.path)
        return
    yield from _out(cloud, packet, bypass)


def _out(cloud: Cloud, packet: Packet, bypass: bool) -> Iterator[Json]:
    """Leave the source: its firewall, then the route; Google's services have ways of their own."""
    source = packet.source
    if source.service or not source.network:
        yield from _from_outside(cloud, packet, bypass)
        return
    if not (source.machine and source.machine.peered) and not bypass:
        verdict = judge(cloud, source.network, EGRESS, packet)
        yield steps.firewall(source.network, verdict)
        if not verdict.allowed:
            yield _blocked(source.network, verdict)
            return
    route = routes.find(cloud, source.network, packet)
    if route is None:
        yield steps.drop("NO_ROUTE")
        return
    yield steps.route(source.network, route)
    yield from _along(cloud, packet, route, bypass)


def _along(cloud: Cloud, packet: Packet, route: routes.Route, bypass: bool) -> Iterator[Json]:
    if route.kind == routes.PEERING:
        yield steps.forward(packet.source.network, packet.destination)
    elif route.kind == routes.SUBNET:
        yield from _in(cloud, packet, bypass)
    elif route.hop == routes.GATEWAY:
        yield from _to_internet(cloud, packet, route)
    else:
        yield steps.abort("UNSUPPORTED", route.path)


def _to_internet(cloud: Cloud, packet: Packet, route: routes.Route) -> Iterator[Json]:
    machine = packet.source.machine
    if packet.destination.private:
        yield steps.drop("PRIVATE_TRAFFIC_TO_INTERNET", route.path)
        return
    nat = routes.nat_of(cloud, machine.subnet) if machine and not machine.external else None
    if nat:
        yield steps.nat(packet.source.network, *nat)
    elif machine is None or not machine.external:
        yield steps.drop("NO_EXTERNAL_ADDRESS", machine.path if machine else "")
        return
    yield steps.deliver("INTERNET", packet.destination)


def _from_outside(cloud: Cloud, packet: Packet, bypass: bool) -> Iterator[Json]:
    """Come from the internet, which knows external addresses alone, or from Google's services."""
    machine = packet.destination.machine
    if machine is None:
        yield steps.drop("UNKNOWN_EXTERNAL_ADDRESS")
    elif not packet.source.service and not machine.external:
        yield steps.drop("NO_ROUTE_FROM_INTERNET_TO_PRIVATE_IPV4_ADDRESS", machine.path)
    else:
        yield from _in(cloud, packet, bypass)


def _in(cloud: Cloud, packet: Packet, bypass: bool) -> Iterator[Json]:
    """Arrive at the destination's machine, if its firewall lets the packet in."""
    machine = packet.destination.machine
    if machine is None:
        yield steps.abort("UNKNOWN_IP", packet.source.network, packet.destination.address)
        return
    if machine.peered:
        yield steps.drop("UNKNOWN_INTERNAL_ADDRESS")
        return
    if not bypass:
        verdict = judge(cloud, machine.network, INGRESS, packet)
        yield steps.firewall(machine.network, verdict)
        if not verdict.allowed:
            yield _blocked(machine.network, verdict)
            return
    yield steps.arrive(machine)
    if machine.running:
        yield steps.deliver("INSTANCE", packet.destination)
    else:
        yield steps.drop("INSTANCE_NOT_RUNNING", machine.path)


def _blocked(network: str, verdict: Verdict) -> Json:
    project = "/".join(network.split("/")[:2])
    name = verdict.rule["name"] if verdict.rule else ""
    return steps.drop("FIREWALL_RULE", f"{project}/global/firewalls/{name}" if name else "")
