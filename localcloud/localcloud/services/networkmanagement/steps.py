"""The steps of a trace, in the form in which the API shows them."""

from __future__ import annotations

from localcloud.core.call import Json
from localcloud.core.store import Record
from localcloud.services.compute.links import last, path_from
from localcloud.services.networkmanagement.firewall import EGRESS, IMPLIED_PRIORITY, Verdict
from localcloud.services.networkmanagement.machines import Machine
from localcloud.services.networkmanagement.packets import Packet, Place
from localcloud.services.networkmanagement.routes import Route

# Any of the ports that systems give to the side that begins: the analysis looks at none of them.
_SOURCE_PORT = 49152


def endpoints(packet: Packet) -> Json:
    """Return the packet's two ends."""
    about: Json = {
        "sourceIp": packet.source.address,
        "destinationIp": packet.destination.address,
        "protocol": packet.protocol.upper(),
    }
    if packet.source.network:
        about["sourceNetworkUri"] = packet.source.network
    if packet.destination.network:
        about["destinationNetworkUri"] = packet.destination.network
    if packet.port is not None:
        about |= {"destinationPort": packet.port, "sourcePort": _SOURCE_PORT}
    return about


def start(packet: Packet, subnet: Record | None) -> Json:
    """Return the first step, which says what the source is, in which subnetwork if in any."""
    source = packet.source
    if source.machine:
        return {"state": "START_FROM_INSTANCE", "instance": _instance(source.machine)}
    if source.service:
        service = {"sourceIp": source.address, "googleServiceType": source.service}
        return {"state": "START_FROM_GOOGLE_SERVICE", "googleService": service}
    if source.network:
        network = {"uri": source.network, "displayName": last(source.network)}
        if subnet:
            network |= {
                "matchedIpRange": subnet["ipCidrRange"],
                "matchedSubnetUri": path_from(subnet["selfLink"]),
                "region": last(subnet["region"]),
            }
        return {"state": "START_FROM_PRIVATE_NETWORK", "network": network}
    return {"state": "START_FROM_INTERNET", "endpoint": endpoints(packet)}


def firewall(network: str, verdict: Verdict) -> Json:
    """Return the step in which a rule decides."""
    about: Json = {
        "direction": verdict.direction,
        "action": "ALLOW" if verdict.allowed else "DENY",
        "networkUri": network,
    }
    rule = verdict.rule
    if rule is None:
        name = "default-allow-egress" if verdict.direction == EGRESS else "default-deny-ingress"
        about |= {
            "firewallRuleType": "IMPLIED_VPC_FIREWALL_RULE",
            "displayName": name,
            "priority": IMPLIED_PRIORITY,
        }
    else:
        about |= {
            "firewallRuleType": "VPC_FIREWALL_RULE",
            "displayName": rule["name"],
            "uri": f"{'/'.join(network.split('/')[:2])}/global/firewalls/{rule['name']}",
            "priority": rule["priority"],
            "targetTags": rule.get("targetTags", []),
            "targetServiceAccounts": rule.get("targetServiceAccounts", []),
        }
    return {"state": f"APPLY_{verdict.direction}_FIREWALL_RULE", "firewall": about}


def route(network: str, chosen: Route) -> Json:
    """Return the step in which a packet takes a route."""
    about: Json = {
        "routeType": chosen.kind,
        "displayName": chosen.name,
        "destIpRange": chosen.range,
        "nextHopType": chosen.hop,
        "networkUri": network,
        "routeScope": "NETWORK",
    }
    if chosen.hop_path:
        about |= {"nextHopUri": chosen.hop_path, "priority": chosen.priority}
    elif chosen.hop == "NEXT_HOP_NETWORK":
        about["nextHop"] = "network gateway"
    if chosen.path:
        about["uri"] = chosen.path
    return {"state": "APPLY_ROUTE", "route": about}


def nat(network: str, router: str, name: str) -> Json:
    """Return the step in which Cloud NAT gives the packet an external address."""
    about = {"type": "CLOUD_NAT", "routerUri": router, "natGatewayName": name}
    return {"state": "NAT", "nat": about | {"networkUri": network}}


def arrive(machine: Machine) -> Json:
    """Return the step in which the packet gets to its machine."""
    return {"state": "ARRIVE_AT_INSTANCE", "instance": _instance(machine)}


def deliver(target: str, place: Place) -> Json:
    """Return the last step of a packet that gets there."""
    about: Json = {"target": target, "ipAddress": place.address}
    if place.machine:
        about["resourceUri"] = place.machine.path
    return {"state": "DELIVER", "deliver": about}


def forward(network: str, place: Place) -> Json:
    """Return the last step of a packet that leaves for Google's own network."""
    about = {"target": "PEERING_VPC", "resourceUri": network, "ipAddress": place.address}
    return {"state": "FORWARD", "forward": about}


def drop(cause: str, resource: str = "") -> Json:
    """Return the last step of a packet that is lost."""
    about = {"cause": cause} | ({"resourceUri": resource} if resource else {})
    return {"state": "DROP", "causesDrop": True, "drop": about}


def abort(cause: str, resource: str = "", address: str = "") -> Json:
    """Return the last step of an analysis that can't go on."""
    about = {"cause": cause} | ({"resourceUri": resource} if resource else {})
    about |= {"ipAddress": address} if address else {}
    return {"state": "ABORT", "abort": about}


def _instance(machine: Machine) -> Json:
    about: Json = {
        "displayName": machine.name,
        "uri": machine.path,
        "interface": machine.interface,
        "networkUri": machine.network,
        "internalIp": machine.address,
        "networkTags": sorted(machine.tags),
        "serviceAccount": machine.account,
        "status": "RUNNING" if machine.running else "NOT_RUNNING",
    }
    return about | ({"externalIp": machine.external} if machine.external else {})
