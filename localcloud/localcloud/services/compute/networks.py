"""VPC networks: auto and custom mode, and the `default` network of every project."""

from __future__ import annotations

from typing import Any

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.core.hooks import service_enabled
from localcloud.core.operations import effect
from localcloud.core.store import Record
from localcloud.services.compute import catalog, shared_vpc, usage
from localcloud.services.compute.api import API, STORE
from localcloud.services.compute.fingerprints import stamp
from localcloud.services.compute.kinds import Kind
from localcloud.services.compute.links import path_from, path_of, shown, url_of
from localcloud.services.compute.resources import changed, changes, identity, load, serve
from localcloud.services.orgpolicy import constraints

DEFAULT = "default"
_AUTO_RANGE = "10.128.0.0/9"
SUBNETWORK: Json = {
    "privateIpGoogleAccess": False,
    "privateIpv6GoogleAccess": "DISABLE_GOOGLE_ACCESS",
    "purpose": "PRIVATE",
    "stackType": "IPV4_ONLY",
    "allowSubnetCidrRoutesOverlap": False,
}
"""The fields of every new subnetwork whose maker says nothing else."""
_RULES: tuple[tuple[str, str, list[Json]], ...] = (
    ("default-allow-icmp", "0.0.0.0/0", [{"IPProtocol": "icmp"}]),
    (
        "default-allow-internal",
        _AUTO_RANGE,
        [
            {"IPProtocol": "tcp", "ports": ["0-65535"]},
            {"IPProtocol": "udp", "ports": ["0-65535"]},
            {"IPProtocol": "icmp"},
        ],
    ),
    ("default-allow-rdp", "0.0.0.0/0", [{"IPProtocol": "tcp", "ports": ["3389"]}]),
    ("default-allow-ssh", "0.0.0.0/0", [{"IPProtocol": "tcp", "ports": ["22"]}]),
)


def require_network(cloud: Cloud, project: str, reference: str) -> str:
    """Return the path of an existing network.

    Args:
        cloud: the cloud.
        project: of references that name none.
        reference: URL, path, or the bare name.

    Raises:
        ApiError: 404 when there is none, 400 when it is not lent to the project.
    """
    if "/" not in reference:
        reference = f"global/networks/{reference or DEFAULT}"
    path = path_of(reference, project)
    load(cloud, path)
    shared_vpc.require_lent(cloud, project, path)
    return path


def require_own_network(cloud: Cloud, project: str, reference: str) -> str:
    """Return what `require_network` does; 400 for a network of another project."""
    path = require_network(cloud, project, reference)
    shared_vpc.require_own(project, path)
    return path


def subnets(cloud: Cloud, network: str) -> list[Record]:
    """Return the subnetworks of the network at path `network`, in every region."""
    project = "/".join(network.split("/")[:2])
    return [
        record
        for path, record in cloud.store.items(STORE, f"{project}/regions/")
        if "/subnetworks/" in path and record["network"] == url_of(network)
    ]


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    if "IPv4Range" in record:
        raise invalid("Legacy networks are not supported anymore; set autoCreateSubnetworks.")
    _complete(record)
    _add_routes(cloud, path, record)
    if record["autoCreateSubnetworks"]:
        _add_auto_subnets(cloud, path, record)


def _complete(record: Json) -> None:
    record.setdefault("networkFirewallPolicyEnforcementOrder", "AFTER_CLASSIC_FIREWALL")
    routing: dict[str, Any] = {"routingMode": "REGIONAL", "bgpBestPathSelectionMode": "LEGACY"}
    record["routingConfig"] = routing | record.get("routingConfig", {})
    _give_ula_range(record)
    record["selfLinkWithId"] = url_of(
        path_from(record["selfLink"]).rpartition("/")[0] + f"/{record['id']}"
    )


def _give_ula_range(record: Json) -> None:
    """Give a network with internal IPv6 addresses a /48 of fd20::/20, unless it brings its own."""
    if not record.get("enableUlaInternalIpv6"):
        record.pop("enableUlaInternalIpv6", None)
    elif not record.get("internalIpv6Range"):
        number = int(record["id"])
        record["internalIpv6Range"] = (
            f"fd20:{number >> 16 & 0xFFF:x}:{number & 0xFFFF:x}:0:0:0:0:0/48"
        )


def _add_auto_subnets(cloud: Cloud, path: str, record: Json) -> None:
    project, name = path.split("/")[1], record["name"]
    record["subnetworks"] = []
    for region, range_ in catalog.auto_ranges(cloud, project).items():
        at = f"projects/{project}/regions/{region}/subnetworks/{name}"
        subnet = (
            SUBNETWORK
            | identity(cloud, "compute#subnetwork", at, name)
            | {
                "_automatic": True,
                "network": url_of(path),
                "ipCidrRange": range_,
                "gatewayAddress": range_.replace(".0.0/20", ".0.1"),
            }
        )
        stamp(subnet)
        cloud.store.put(STORE, at, subnet)
        record["subnetworks"].append(url_of(at))


def _add_routes(cloud: Cloud, path: str, record: Json) -> None:
    project = path.split("/")[1]
    name = f"default-route-{record['id']}"
    at = f"projects/{project}/global/routes/{name}"
    route = identity(cloud, "compute#route", at, name) | {
        "network": url_of(path),
        "description": "Default route to the Internet.",
        "destRange": "0.0.0.0/0",
        "priority": 1000,
        "nextHopGateway": url_of(f"projects/{project}/global/gateways/default-internet-gateway"),
    }
    cloud.store.put(STORE, at, route)


def _change(cloud: Cloud, call: Call, before: Json, after: Json) -> str:
    after["routingConfig"] = before["routingConfig"] | call.body.get("routingConfig", {})
    if before["autoCreateSubnetworks"] != after["autoCreateSubnetworks"]:
        raise invalid("Use switchToCustomMode to change the mode of a network.")
    _give_ula_range(after)
    return "updateNetwork" if "enableUlaInternalIpv6" in call.body else "patch"


@effect("compute.network.remove")
def _remove(cloud: Cloud, path: str) -> None:
    """Remove a network with its routes and automatic subnets, unless something is in it."""
    with cloud.store.locked():
        usage.require_unused(cloud, path)
        for subnet in subnets(cloud, path):
            cloud.store.delete(STORE, path_from(subnet["selfLink"]))
        project = "/".join(path.split("/")[:2])
        for at, route in cloud.store.items(STORE, f"{project}/global/routes/"):
            if route["network"] == url_of(path):
                cloud.store.delete(STORE, at)
        cloud.store.delete(STORE, path)
    changed.run(cloud, path)


KIND = Kind(
    collection="networks",
    parameter="network",
    scope="global",
    defaults={"autoCreateSubnetworks": True},
    prepare=_prepare,
    change=_change,
    removal="compute.network.remove",
    latency="network",
)
serve(KIND)


@changes(KIND, "switchToCustomMode")
def switch_to_custom_mode(cloud: Cloud, call: Call, record: Record) -> None:
    """Make an auto mode network a custom one; its subnets stay."""
    record["autoCreateSubnetworks"] = False
    for subnet in subnets(cloud, KIND.path(call)):
        subnet.pop("_automatic", None)
        cloud.store.put(STORE, path_from(subnet["selfLink"]), subnet)


@API.method("networks.getEffectiveFirewalls", permission="compute.networks.getEffectiveFirewalls")
def get_effective_firewalls(cloud: Cloud, call: Call) -> Json:
    """List the firewall rules of a network."""
    path = KIND.path(call)
    load(cloud, path)
    rules = [
        rule
        for _, rule in cloud.store.items(STORE, f"projects/{call.project}/global/firewalls/")
        if rule["network"] == url_of(path)
    ]
    return shown(call, {"firewalls": rules})


@service_enabled["compute.googleapis.com"]
def _add_default_network(cloud: Cloud, project: str) -> None:
    """Give a project the network that Google gives it with the Compute Engine API."""
    path = f"projects/{project}/global/networks/{DEFAULT}"
    skipped = constraints.is_enforced(cloud, project, constraints.SKIP_DEFAULT_NETWORK)
    if skipped or cloud.store.get(STORE, path) is not None:
        return
    network = identity(cloud, "compute#network", path, DEFAULT) | {
        "description": "Default network for the project",
        "autoCreateSubnetworks": True,
    }
    _complete(network)
    _add_routes(cloud, path, network)
    _add_auto_subnets(cloud, path, network)
    cloud.store.put(STORE, path, network)
    for name, source, allowed in _RULES:
        at = f"projects/{project}/global/firewalls/{name}"
        rule = identity(cloud, "compute#firewall", at, name) | {
            "network": url_of(path),
            "priority": 65534,
            "direction": "INGRESS",
            "sourceRanges": [source],
            "allowed": allowed,
            "disabled": False,
            "logConfig": {"enable": False},
        }
        cloud.store.put(STORE, at, rule)
