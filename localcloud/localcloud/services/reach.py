"""Who reaches whom: the way of a packet by routes, firewall rules, tags and accounts.

A subnetwork's own route comes first; of the others the longest prefix, then the lowest priority
number (cloud.google.com/vpc/docs/routes#routeselection). Of the firewall rules that apply to the
machine and match the packet, the lowest priority number decides; a rule that denies wins a tie.
Behind all rules, every network allows what leaves and denies what comes in
(cloud.google.com/firewall/docs/firewalls).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, ip_network

from localcloud.core.call import Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.compute import networks, resources
from localcloud.services.compute.api import STORE, last, path_from, url_of
from localcloud.services.compute.instance_records import started
from localcloud.services.tpu import hosts, nodes
from localcloud.services.tpu.api import NODE

# IANA's numbers, which rules may have in place of names.
_PROTOCOLS = {"tcp": "6", "udp": "17", "icmp": "1", "esp": "50", "ah": "51", "sctp": "132"}
_WITH_PORTS = ("tcp", "udp", "sctp")
# IAP, health checks and load balancers reach machines without an external address. Sources:
# cloud.google.com/iap/docs/using-tcp-forwarding,
# cloud.google.com/load-balancing/docs/health-check-concepts#ip-ranges.
_GOOGLE = [IPv4Network(text) for text in ("35.235.240.0/20", "35.191.0.0/16", "130.211.0.0/22")]


@dataclass(frozen=True)
class End:
    """One end of a packet's way: an address, or an interface of a VM or of a TPU's host.

    Attributes:
        address: of IPv4.
        network: path of its network, empty for the internet; of a classic node the one that
            Google's is peered with.
        path: of the instance; of a TPU's host the node's name with `/hosts/INDEX`. Empty for an
            address without a machine, as are the fields that follow.
        name: of the instance; a TPU's host is `TPU/INDEX`.
        subnet: path of its subnetwork; empty for a classic node.
        external: its external address, or empty.
        tags: network tags, which rules choose by.
        account: e-mail of its service account, or empty.
        running: it answers.
        peered: it is in Google's own network, where the project's rules don't apply.
        served: where a TPU's host really listens: address and port as its API reports them.
    """

    address: str
    network: str = ""
    path: str = ""
    name: str = ""
    subnet: str = ""
    external: str = ""
    tags: frozenset[str] = frozenset()
    account: str = ""
    running: bool = True
    peered: bool = False
    served: tuple[str, int] | None = None

    def within(self, blocks: list[IPv4Network]) -> bool:
        """Return whether the address is in one of the blocks."""
        return any(IPv4Address(self.address) in block for block in blocks)

    def __str__(self) -> str:
        return f"{self.name} ({self.address})" if self.path else self.address


@dataclass(frozen=True)
class Packet:
    """`protocol` is in lower case; `port` is the destination's, None for protocols without."""

    source: End
    destination: End
    protocol: str
    port: int | None


def answer(cloud: Cloud, source: str, destination: str, protocol: str) -> Json:
    """Return whether a machine reaches another, and the routes and rules that decide.

    Args:
        cloud: the cloud.
        source: name of a VM, of a TPU (its host 0), `TPU/HOST`, or an address.
        destination: the same with `:PORT`, and `grpc://` before it or not.
        protocol: such as `tcp`.

    Raises:
        ApiError: 400 for a malformed or ambiguous end, 404 for one that doesn't exist.
    """
    protocol = protocol.lower()
    if protocol not in _PROTOCOLS:
        raise invalid(f"protocol {protocol!r} is not one of {', '.join(_PROTOCOLS)}")
    known = list(_machines(cloud))
    name, port = _split(destination.removeprefix("grpc://"), protocol)
    served = [machine for machine in known if machine.served == (name, port)]
    # What the API reports here is where Google's TPUs listen at the standard port.
    to, port = (served[0], hosts.STANDARD) if served else (_end(known, name), port)
    # A private address without a machine is in the network of the other end.
    start = _in_network_of(_end(known, source), to)
    packet = Packet(start, _in_network_of(to, start), protocol, port)
    steps: list[str] = []
    reached = _follow(cloud, packet, steps)
    result = {True: "REACHABLE", False: "UNREACHABLE", None: "UNDETERMINED"}[reached]
    ends = {"source": str(packet.source), "destination": str(packet.destination)}
    return {**ends, "port": port, "protocol": protocol, "result": result, "steps": steps}


def _split(text: str, protocol: str) -> tuple[str, int | None]:
    if protocol not in _WITH_PORTS:
        return text, None
    name, _, port = text.rpartition(":")
    if not name or not port.isdecimal() or not 0 < int(port) < 65536:
        raise invalid(f"destination {text!r} is not NAME:PORT with a port of 1 to 65535")
    return name, int(port)


def _end(known: list[End], name: str) -> End:
    wanted = {name, f"{name}/0", f"{name}/hosts/0"}
    found = [machine for machine in known if wanted & {machine.name, machine.path}]
    if len(found) > 1:
        listed = ", ".join(machine.path for machine in found)
        raise invalid(f"{name!r} may be any of {listed}; name one in full")
    if found:
        return found[0]
    try:
        address = str(IPv4Address(name))
    except AddressValueError:
        listed = ", ".join(sorted(machine.name for machine in known)) or "none"
        raise ApiError(404, f"no machine is called {name}; there are: {listed}") from None
    # All TPU hosts have the external address of the loopback interface, which names none of them.
    having = [m for m in known if address in (m.address, m.external if not m.served else "")]
    return having[0] if len(having) == 1 else End(address)


def _in_network_of(end: End, other: End) -> End:
    if end.path or end.within(_GOOGLE) or not end.within(networks.PRIVATE):
        return end
    return End(end.address, other.network)


def _follow(cloud: Cloud, packet: Packet, steps: list[str]) -> bool | None:
    """Follow a packet, noting each step; None when the local cloud can't tell."""
    source, target = packet.source, packet.destination
    if not source.running:
        return _drop(steps, f"{source.name} is not running")
    if source.within(_GOOGLE) or not source.network:
        if not target.path:
            return _drop(steps, "no machine has this address")
        if not source.within(_GOOGLE) and not target.external:
            return _drop(steps, f"{target.name} has no external address")
        return _arrive(cloud, packet, steps)
    if not source.peered and not _passes(cloud, "EGRESS", packet, steps):
        return False
    address = IPv4Address(target.address)
    for subnet in networks.subnets(cloud, source.network):
        for block in networks.ranges(subnet):
            if address in block:
                steps.append(f"route   subnetwork {subnet['name']}, {block}")
                return _arrive(cloud, packet, steps)
    for _, node in cloud.store.items(NODE):
        peered = node.get("cidrBlock") if node["apiVersion"] == "V1" else None
        if peered and node["_network"] == source.network and address in IPv4Network(peered):
            steps.append(f"route   peering, {peered}")
            # Google's network lets it in: cloud.google.com/tpu/docs/internal-ip-blocks.
            steps.append("forward into Google's own network")
            return True
    return _leave(cloud, packet, steps)


# A machine that is off still lets the rules be judged first: they are what the question is about.
def _arrive(cloud: Cloud, packet: Packet, steps: list[str]) -> bool | None:
    target = packet.destination
    if not target.path:
        steps.append(f"abort   no machine has the address {target.address}")
        return None
    if target.peered:
        return _drop(steps, f"{target.name} is in Google's network")
    if not _passes(cloud, "INGRESS", packet, steps):
        return False
    return target.running or _drop(steps, f"{target.name} is not running")


def _leave(cloud: Cloud, packet: Packet, steps: list[str]) -> bool | None:
    """Take a static route, to the internet as a rule."""
    source, project = packet.source, _project(packet.source.network)
    routes = [
        (-IPv4Network(route["destRange"]).prefixlen, route["priority"], path, route)
        for path, route in cloud.store.items(STORE, f"{project}/global/routes/")
        if route["network"] == url_of(source.network)
        and packet.destination.within([IPv4Network(route["destRange"])])
        and (not route.get("tags") or source.tags & set(route["tags"]))
    ]
    if not routes:
        return _drop(steps, "no route")
    # No two routes have the same path: records are never compared.
    route = min(routes)[-1]
    steps.append(f"route   {route['name']}, {route['destRange']}")
    if "nextHopGateway" not in route:
        steps.append("abort   the local cloud follows routes to the internet gateway only")
        return None
    if packet.destination.within(networks.PRIVATE):
        return _drop(steps, "the internet has no private addresses")
    if source.external:
        return True
    if nat := _nat(cloud, source.subnet):
        steps.append(f"nat     {nat}")
        return True
    return _drop(steps, "no external address and no Cloud NAT")


def _drop(steps: list[str], cause: str) -> bool:
    steps.append(f"drop    {cause}")
    return False


def _nat(cloud: Cloud, subnet: str) -> str:
    """Return the name of the Cloud NAT that serves a subnetwork, or an empty string."""
    record = cloud.store.get(STORE, subnet)
    if record is None:
        return ""
    at = f"{_project(subnet)}/regions/{last(record['region'])}/routers/"
    for _, router in cloud.store.items(STORE, at):
        for nat in router.get("nats", []) if router["network"] == record["network"] else ():
            served = [entry["name"] for entry in nat.get("subnetworks", [])]
            chosen = nat["sourceSubnetworkIpRangesToNat"] == "LIST_OF_SUBNETWORKS"
            if not chosen or record["selfLink"] in served:
                return str(nat["name"])
    return ""


def _project(path: str) -> str:
    return "/".join(path.split("/")[:2])


def _passes(cloud: Cloud, direction: str, packet: Packet, steps: list[str]) -> bool:
    """Return whether the firewall lets a packet out (EGRESS) or in, and note which rule decides."""
    end = packet.destination if direction == "INGRESS" else packet.source
    rules = [
        rule
        for _, rule in cloud.store.items(STORE, f"{_project(end.network)}/global/firewalls/")
        if rule["network"] == url_of(end.network)
        and rule["direction"] == direction
        and not rule["disabled"]
        and _matches(rule, packet, end)
    ]
    if rules:
        rule = min(rules, key=lambda r: (r["priority"], bool(r.get("allowed")), r["name"]))
        allowed = bool(rule.get("allowed"))
        by = f"rule {rule['name']}, priority {rule['priority']}"
    else:
        allowed, by = direction == "EGRESS", "the implied rule, priority 65535"
    steps.append(f"{direction.lower():8}{'allowed' if allowed else 'denied'} by {by}")
    return allowed


def _matches(rule: Record, packet: Packet, end: End) -> bool:
    """Return whether a rule is for the machine at `end` and for the packet."""
    targets = rule.get("targetTags"), rule.get("targetServiceAccounts")
    # A rule without targets is for all machines.
    if any(targets) and not _has(end, *targets):
        return False
    if not any(_covers(entry, packet) for entry in rule.get("allowed") or rule["denied"]):
        return False
    if (blocks := rule.get("destinationRanges")) and not _within(packet.destination, blocks):
        return False
    source, blocks = packet.source, rule.get("sourceRanges")
    tags, accounts = rule.get("sourceTags"), rule.get("sourceServiceAccounts")
    if not (blocks or tags or accounts) or (blocks and _within(source, blocks)):
        return True
    # Tags and accounts are those of a machine's own interface in this very network.
    own = url_of(source.network) == rule["network"] and not source.peered
    return own and _has(source, tags, accounts)


def _has(end: End, tags: list[str] | None, accounts: list[str] | None) -> bool:
    return bool(end.tags & set(tags or ())) or end.account in (accounts or ())


def _within(end: End, blocks: list[str]) -> bool:
    return any(IPv4Address(end.address) in ip_network(text, strict=False) for text in blocks)


# Ports are single ones or ranges; protocols are names or IANA's numbers. Without ports all are
# meant.
def _covers(entry: Record, packet: Packet) -> bool:
    protocol = entry["IPProtocol"].lower()
    if protocol not in ("all", packet.protocol, _PROTOCOLS[packet.protocol]):
        return False
    listed = [text.partition("-") for text in entry.get("ports", ())]
    port = packet.port
    if not listed or port is None:
        return True
    return any(int(low) <= port <= int(high or low) for low, _, high in listed)


def _machines(cloud: Cloud) -> Iterator[End]:
    """Yield every interface of every machine."""
    for path, record in cloud.store.items(STORE, "projects/"):
        if path.split("/")[-2] == "instances":
            yield from _of_instance(path, record)
    for name, record in cloud.store.items(NODE):
        yield from _of_node(name, record)


# Each interface is an end of its own, with the addresses of its network.
def _of_instance(path: str, record: Record) -> Iterator[End]:
    accounts = record.get("serviceAccounts") or [{}]
    for interface in record["networkInterfaces"]:
        configs = interface.get("accessConfigs") or [{}]
        yield End(
            address=interface["networkIP"],
            network=path_from(interface["network"]),
            path=path,
            name=record["name"],
            subnet=path_from(interface["subnetwork"]),
            external=configs[0].get("natIP", ""),
            tags=frozenset(record["tags"].get("items", ())),
            account=accounts[0].get("email", ""),
            running=record["status"] == "RUNNING",
        )


def _of_node(name: str, record: Record) -> Iterator[End]:
    used = (path_from(url) for url in record["_uses"] if "/subnetworks/" in url)
    subnet, endpoints = next(used, ""), record.get("networkEndpoints", [])
    for index, address in enumerate(record.get("_addresses", [])):
        yield End(
            address=address,
            network=record["_network"],
            path=hosts.keys(record)[index],
            name=f"{last(name)}/{index}",
            subnet=subnet,
            external=endpoints[index].get("accessConfig", {}).get("externalIp", ""),
            tags=frozenset(record.get("tags", ())),
            # No source says that rules for an account hold for the hosts of TPU VMs.
            account="",
            running=record["state"] == "READY",
            peered=isinstance(record["serviceAccount"], str),
            served=(endpoints[index]["ipAddress"], endpoints[index]["port"]),
        )


@nodes.served
def shut_ports(cloud: Cloud) -> None:
    """Shut the gRPC ports of the TPU hosts that no machine may reach: clients hang, as on Google.

    All machines are processes on one address, so the kernel can't tell one client from another. The
    port as a whole is shut while the rules admit neither a machine like the host itself nor any VM.
    """
    known = list(_machines(cloud))
    by_path = {machine.path: machine for machine in known}
    for _, record in cloud.store.items(NODE):
        for index, path in enumerate(hosts.keys(record)):
            host = by_path.get(path)
            if host and host.running and not host.peered:
                near = [host, *(other for other in known if other.network == host.network)]
                admitted = any(_admits(cloud, client, host) for client in near)
                hosts.shut(cloud, record, index, hosts.is_deaf(cloud, record) or not admitted)


def _admits(cloud: Cloud, client: End, host: End) -> bool:
    packet = Packet(client, host, "tcp", hosts.STANDARD)
    return all(_passes(cloud, direction, packet, []) for direction in ("EGRESS", "INGRESS"))


@resources.changed
def _rules_changed(cloud: Cloud, path: str) -> None:
    if "/firewalls/" in path:
        shut_ports(cloud)


@started
def _machine_started(cloud: Cloud, path: str) -> None:
    shut_ports(cloud)
