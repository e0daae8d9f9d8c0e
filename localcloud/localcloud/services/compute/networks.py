"""VPC networks with their subnetworks, routes, Cloud Routers and firewall rules."""

from ipaddress import IPv4Network, ip_network
from typing import Any

from localcloud.core import ApiError, Call, Cloud, Json, Record, effect, invalid
from localcloud.core.cloud import service_enabled
from localcloud.services import org_policy
from localcloud.services.compute import api, catalog, projects, resources
from localcloud.services.compute.api import STORE, last, path_from, path_of, url_of

DEFAULT = "default"
PRIVATE = [IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
"""The private addresses of RFC 1918."""
SUBNETWORK_DEFAULTS: Json = {
    "privateIpGoogleAccess": False,
    "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
    "purpose": "PRIVATE",
    "stackType": "IPV4_ONLY",
    "allowSubnetCidrRoutesOverlap": False,
}
"""The fields of every new subnetwork whose maker says nothing else."""
_RULE_DEFAULTS: Json = {
    "direction": "INGRESS",
    "priority": 1000,
    "disabled": False,
    "logConfig": {"enable": False},
}
# The rules of the default network: their name's end, source and ports by protocol. Source:
# cloud.google.com/firewall/docs/firewalls#more_rules_default_vpc.
_RULES: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("icmp", "0.0.0.0/0", {"icmp": ""}),
    ("internal", "10.128.0.0/9", {"tcp": "0-65535", "udp": "0-65535", "icmp": ""}),
    ("rdp", "0.0.0.0/0", {"tcp": "3389"}),
    ("ssh", "0.0.0.0/0", {"tcp": "22"}),
)


def require_network(cloud: Cloud, project: str, reference: str) -> str:
    """Return the path of an existing network by its URL, path or name.

    It is 404 when there is none, 400 when it is not lent to the project.
    """
    if "/" not in reference:
        reference = f"global/networks/{reference or DEFAULT}"
    path = path_of(reference, project)
    resources.load(cloud, path)
    projects.require_lent(cloud, project, path)
    return path


def _place(cloud: Cloud, call: Call, record: Json) -> str:
    """Write down the network of a new resource by its URL, and return its path.

    It is 400 for a network of another project: what is in a network is made by its owner.
    """
    path = require_network(cloud, call.project, record.get("network", ""))
    projects.require_own(call.project, path)
    record["network"] = url_of(path)
    return path


def subnets(cloud: Cloud, network: str) -> list[Record]:
    """Return the subnetworks of the network at path `network`, in every region."""
    project = "/".join(network.split("/")[:2])
    return [
        record
        for path, record in cloud.store.items(STORE, f"{project}/regions/")
        if "/subnetworks/" in path and record["network"] == url_of(network)
    ]


def _prepare_network(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    if "IPv4Range" in record:
        raise invalid("Legacy networks are not supported anymore; set autoCreateSubnetworks.")
    _complete(cloud, path, record)


def _complete(cloud: Cloud, path: str, record: Json) -> None:
    """Fill in what Google fills in, and make what every network begins with."""
    # No request says true, and Google shows no false.
    record.pop("enableUlaInternalIpv6", None)
    record.setdefault("networkFirewallPolicyEnforcementOrder", "AFTER_CLASSIC_FIREWALL")
    routing: dict[str, Any] = {"routingMode": "REGIONAL", "bgpBestPathSelectionMode": "LEGACY"}
    record["routingConfig"] = routing | record.get("routingConfig", {})
    record["selfLinkWithId"] = f"{record['selfLink'].rpartition('/')[0]}/{record['id']}"
    _add_routes(cloud, path, record)
    if record["autoCreateSubnetworks"]:
        _add_auto_subnets(cloud, path, record)


# One subnet a region, named like the network, each with the range that Google has set aside for the
# region.
def _add_auto_subnets(cloud: Cloud, path: str, record: Json) -> None:
    project, name = path.split("/")[1], record["name"]
    record["subnetworks"] = []
    for region, range_ in catalog.auto_ranges(cloud, project).items():
        at = f"projects/{project}/regions/{region}/subnetworks/{name}"
        subnet = {
            **SUBNETWORK_DEFAULTS,
            **resources.identity(cloud, "compute#subnetwork", at, name),
            "_automatic": True,
            "network": url_of(path),
            "ipCidrRange": range_,
            "gatewayAddress": str(IPv4Network(range_)[1]),
        }
        resources.stamp(subnet)
        cloud.store.put(STORE, at, subnet)
        record["subnetworks"].append(url_of(at))


# Every network begins with a way to the internet, which its owner may delete.
def _add_routes(cloud: Cloud, path: str, record: Json) -> None:
    project = path.split("/")[1]
    name = f"default-route-{record['id']}"
    at = f"projects/{project}/global/routes/{name}"
    route = resources.identity(cloud, "compute#route", at, name) | {
        "network": url_of(path),
        "description": "Default route to the Internet.",
        "destRange": "0.0.0.0/0",
        "priority": 1000,
        "nextHopGateway": url_of(f"projects/{project}/global/gateways/default-internet-gateway"),
    }
    cloud.store.put(STORE, at, route)


def _change_network(cloud: Cloud, call: Call, before: Json, after: Json) -> None:
    # A patch of one field of the routing must not drop the others.
    after["routingConfig"] = before["routingConfig"] | call.body.get("routingConfig", {})
    if before["autoCreateSubnetworks"] != after["autoCreateSubnetworks"]:
        raise ApiError(501, "the local cloud does not change the mode of a network")


@effect("compute.network.remove")
def _remove_network(cloud: Cloud, path: str) -> None:
    """Remove a network with its routes and automatic subnets, unless something is in it.

    The check is the operation's, not the call's: on Google too a deletion starts and then fails.
    """
    with cloud.store.locked():
        resources.require_unused(cloud, path)
        for subnet in subnets(cloud, path):
            cloud.store.delete(STORE, path_from(subnet["selfLink"]))
        project = "/".join(path.split("/")[:2])
        for at, route in cloud.store.items(STORE, f"{project}/global/routes/"):
            if route["network"] == url_of(path):
                cloud.store.delete(STORE, at)
        cloud.store.delete(STORE, path)
    resources.changed.run(cloud, path)


NETWORK = resources.Kind(
    collection="networks",
    parameter="network",
    scope="global",
    defaults={"autoCreateSubnetworks": True},
    prepare=_prepare_network,
    change=_change_network,
    removal="compute.network.remove",
    latency="network",
)
resources.serve(NETWORK)


@service_enabled["compute.googleapis.com"]
def _add_default_network(cloud: Cloud, project: str) -> None:
    """Create the network that comes with the Compute Engine API.

    Its rules let in what a beginner needs: SSH, RDP and ping from everywhere, all ports from
    inside.
    """
    path = f"projects/{project}/global/networks/{DEFAULT}"
    skipped = org_policy.is_enforced(cloud, project, org_policy.SKIP_DEFAULT_NETWORK)
    if skipped or cloud.store.get(STORE, path) is not None:
        return
    network = resources.identity(cloud, "compute#network", path, DEFAULT) | {
        "description": "Default network for the project",
        "autoCreateSubnetworks": True,
    }
    _complete(cloud, path, network)
    cloud.store.put(STORE, path, network)
    for short, source, ports in _RULES:
        name = f"default-allow-{short}"
        at = f"projects/{project}/global/firewalls/{name}"
        own = {
            "network": url_of(path),
            "priority": 65534,
            "sourceRanges": [source],
            "allowed": [
                {"IPProtocol": protocol} | ({"ports": [range_]} if range_ else {})
                for protocol, range_ in ports.items()
            ],
        }
        rule = resources.identity(cloud, "compute#firewall", at, name)
        cloud.store.put(STORE, at, _RULE_DEFAULTS | rule | own)


# Subnetworks, whose ranges must not overlap.

_LONGEST_PREFIX = 29


def parse_range(text: str, field: str) -> IPv4Network:
    """Return an IPv4 range of at most /29 in CIDR notation."""
    try:
        network = IPv4Network(text)
    except ValueError as error:
        raise api.wrong_value(field, text, f"{error}.") from None
    if "/" not in text or network.prefixlen > _LONGEST_PREFIX:
        why = f"The range must have a prefix length between 8 and {_LONGEST_PREFIX}."
        raise api.wrong_value(field, text, why)
    return network


def range_of(subnet: Record) -> IPv4Network:
    """Return the range of a subnetwork; there are no secondary ones, which are for containers."""
    return IPv4Network(subnet["ipCidrRange"])


def require_subnetwork(
    cloud: Cloud, project: str, zone: str, reference: str, network: str
) -> Record:
    """Return the subnetwork by URL, path or name, or the network's own one in the zone's region.

    It is 404 when there is none, 400 when it is in another region or network.
    """
    region = catalog.region_of(zone)
    if not reference:
        for subnet in subnets(cloud, network):
            if last(subnet["region"]) == region:
                return subnet
        why = f"Network '{network}' has no subnetwork in region {region}; name one."
        raise api.wrong_value("networkInterfaces[0].subnetwork", "", why)
    if "/" not in reference:
        reference = f"regions/{region}/subnetworks/{reference}"
    path = path_of(reference, project)
    subnet = resources.load(cloud, path)
    projects.require_lent(cloud, project, path)
    if last(subnet["region"]) != region:
        raise invalid(f"Subnetwork '{reference}' is in another region than zone {zone}.")
    if network and path_from(subnet["network"]) != network:
        raise invalid(f"Subnetwork '{reference}' is not in network '{network}'.")
    return subnet


def _check_range(cloud: Cloud, record: Json) -> None:
    """Refuse a range that is malformed or not the subnetwork's alone in its network."""
    if not record.get("ipCidrRange"):
        raise api.wrong_value("resource.ipCidrRange", "", "It must be given.")
    wanted = parse_range(record["ipCidrRange"], "resource.ipCidrRange")
    record["ipCidrRange"] = str(wanted)
    for other in subnets(cloud, path_from(record["network"])):
        if other["selfLink"] != record["selfLink"] and wanted.overlaps(range_of(other)):
            raise invalid(
                f"Invalid IPCidrRange: {wanted} conflicts with existing subnetwork "
                f"'{other['name']}' in region '{last(other['region'])}'."
            )


def _prepare_subnetwork(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    network = _place(cloud, call, record)
    _check_range(cloud, record)
    _complete_logging(record, record)
    record["gatewayAddress"] = str(range_of(record)[1])
    # A network lists its subnetworks, which clients follow.
    owner = resources.load(cloud, network)
    owner["subnetworks"] = [*owner.get("subnetworks", []), record["selfLink"]]
    cloud.store.put(STORE, network, owner)


def _change_subnetwork(cloud: Cloud, call: Call, before: Json, after: Json) -> None:
    for field in ("ipCidrRange", "network", "name"):
        if before[field] != after[field]:
            raise invalid(f"Invalid value for field 'resource.{field}': it cannot be changed here.")
    _complete_logging(after, resources.tidy(call.body))


# `enableFlowLogs` is the older name of `logConfig.enable`. Google shows both.
def _complete_logging(record: Json, sent: Json) -> None:
    if "enable" in sent.get("logConfig", {}):
        record["enableFlowLogs"] = sent["logConfig"]["enable"]
    elif "enableFlowLogs" in sent:
        record["logConfig"] = record.get("logConfig", {}) | {"enable": sent["enableFlowLogs"]}


def _remove_subnetwork(cloud: Cloud, path: str, record: Json) -> None:
    network = path_from(record["network"])
    owner = resources.load(cloud, network)
    if record.get("_automatic"):
        raise invalid(f"Cannot delete auto subnetwork '{path}' of the auto mode network.")
    left = [url for url in owner.pop("subnetworks") if url != record["selfLink"]]
    cloud.store.put(STORE, network, owner | ({"subnetworks": left} if left else {}))


SUBNETWORK_KIND = resources.Kind(
    collection="subnetworks",
    parameter="subnetwork",
    scope="regions",
    defaults=SUBNETWORK_DEFAULTS,
    prepare=_prepare_subnetwork,
    change=_change_subnetwork,
    remove=_remove_subnetwork,
    stamped=True,
    also=("compute.networks.updatePolicy",),
    latency="network",
)
resources.serve(SUBNETWORK_KIND)


@resources.changes(SUBNETWORK_KIND, "expandIpCidrRange")
def expand_range(cloud: Cloud, call: Call, record: Record) -> None:
    """Widen a subnetwork's primary range; it cannot shrink.

    Addresses that are taken stay valid, since the old range is part of the new one.
    """
    wider = parse_range(call.body.get("ipCidrRange", ""), "ipCidrRange")
    if not range_of(record).subnet_of(wider):
        why = f"It must contain the current range {record['ipCidrRange']}."
        raise api.wrong_value("ipCidrRange", wider, why)
    record["ipCidrRange"] = str(wider)
    _check_range(cloud, record)


# Routes: the one to the internet that every network has, and others to the same gateway. A machine
# here forwards no packets for others, and there are no tunnels and no load balancers.


def _prepare_route(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    _place(cloud, call, record)
    if not record.get("nextHopGateway"):
        raise ApiError(501, "the local cloud has routes to the internet gateway only")
    record["nextHopGateway"] = url_of(path_of(record["nextHopGateway"], call.project))


resources.serve(
    resources.Kind(
        collection="routes",
        parameter="route",
        scope="global",
        defaults={"priority": 1000},
        prepare=_prepare_route,
        latency="network",
    )
)


# Cloud Routers, whose `nats` are Cloud NAT.

_NAT_DEFAULTS: Json = {
    "autoNetworkTier": "PREMIUM",
    "enableEndpointIndependentMapping": False,
    "endpointTypes": ["ENDPOINT_TYPE_VM"],
    "type": "PUBLIC",
}


# NATs are no resources of their own: the provider patches the router with the whole list, and
# compares it with the answer field by field.
def _complete_nats(cloud: Cloud, call: Call, record: Json) -> None:
    completed = []
    for nat in record.get("nats", []):
        resources.require_name(nat.get("name", ""))
        # The provider's own field, which no discovery document has.
        nat.pop("initialNatIps", None)
        for entry in nat.get("subnetworks", []):
            path = path_of(entry["name"], call.project)
            resources.load(cloud, path)
            entry["name"] = url_of(path)
        if nat.get("type") == "PRIVATE":
            raise ApiError(501, "the local cloud has no private NAT")
        completed.append(_NAT_DEFAULTS | nat)
    if completed:
        record["nats"] = completed


def _prepare_router(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    _place(cloud, call, record)
    _complete_nats(cloud, call, record)


# A router stays in its network, since its NAT serves the subnetworks of that one.
def _change_router(cloud: Cloud, call: Call, before: Json, after: Json) -> None:
    _place(cloud, call, after)
    if before["network"] != after["network"]:
        raise invalid("The network of a router cannot be changed.")
    _complete_nats(cloud, call, after)


resources.serve(
    resources.Kind(
        collection="routers",
        parameter="router",
        scope="regions",
        defaults={"encryptedInterconnectRouter": False},
        prepare=_prepare_router,
        change=_change_router,
        also=("compute.networks.updatePolicy",),
        latency="network",
    )
)


# Firewall rules: kept and checked here; `services/reach.py` judges packets by them.

_HIGHEST_PRIORITY = 65535


# Either allows or denies, never both. The priority decides between rules.
def _check_rule(record: Json) -> None:
    # Filters by tags and by accounts exclude each other, as the API's reference has it.
    tags = [field for field in ("sourceTags", "targetTags") if record.get(field)]
    accounts = [f for f in ("sourceServiceAccounts", "targetServiceAccounts") if record.get(f)]
    if tags and accounts:
        raise invalid(f"{tags[0]} and service accounts ({accounts[0]}) exclude each other.")
    if bool(record.get("allowed")) == bool(record.get("denied")):
        raise invalid("Exactly one of 'allowed' and 'denied' must be given with rules in it.")
    if not 0 <= record["priority"] <= _HIGHEST_PRIORITY:
        why = f"Must be between 0 and {_HIGHEST_PRIORITY}."
        raise api.wrong_value("resource.priority", record["priority"], why)
    for field in ("sourceRanges", "destinationRanges"):
        for text in record.get(field, []):
            try:
                ip_network(text)
            except ValueError as error:
                raise api.wrong_value(f"resource.{field}", text, f"{error}.") from None


# A rule without a source or destination is for all of them, which Google writes down.
def _prepare_rule(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    _place(cloud, call, record)
    ingress = record["direction"] == "INGRESS"
    if ingress and not any(
        record.get(field) for field in ("sourceRanges", "sourceTags", "sourceServiceAccounts")
    ):
        record["sourceRanges"] = ["0.0.0.0/0"]
    if not ingress and not record.get("destinationRanges"):
        record["destinationRanges"] = ["0.0.0.0/0"]
    _check_rule(record)


def _change_rule(cloud: Cloud, call: Call, before: Json, after: Json) -> None:
    _place(cloud, call, after)
    if before["network"] != after["network"] or before["direction"] != after["direction"]:
        raise invalid("The network and the direction of a firewall rule cannot be changed.")
    _check_rule(after)


resources.serve(
    resources.Kind(
        collection="firewalls",
        parameter="firewall",
        scope="global",
        defaults=_RULE_DEFAULTS,
        prepare=_prepare_rule,
        change=_change_rule,
        also=("compute.networks.updatePolicy",),
        latency="network",
    )
)
