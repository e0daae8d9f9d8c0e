"""Who reaches whom: the way of a packet by routes, firewall rules, tags and accounts.

A subnetwork's own route comes first, then a classic node's peering, then the way to the internet
(cloud.google.com/vpc/docs/routes#routeselection). Of the firewall rules that apply to the machine
and match the packet, the lowest priority number decides; a rule that denies wins a tie. Behind all
rules, every network allows what leaves and denies what comes in
(cloud.google.com/firewall/docs/firewalls).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import AddressValueError, IPv4Address, IPv4Network, ip_network

from localcloud.core import ApiError, Cloud, Json, Record, invalid
from localcloud.services.compute import instance_records, networks, resources
from localcloud.services.compute.api import STORE, last, path_from, url_of
from localcloud.services.tpu import api, hosts, nodes

# Rules may have IANA's number in place of the name. Everything here speaks TCP.
_PROTOCOLS = ("tcp", "6", "all")
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
class _Packet:
    """One of TCP; `port` is the destination's, `steps` says what has decided so far."""

    cloud: Cloud
    source: End
    target: End
    port: int
    steps: list[str] = field(default_factory=list)

    def arrives(self) -> bool:
        """Follow it, noting each step."""
        source, target = self.source, self.target
        if not source.running:
            return self._drop(f"{source.name} is not running")
        if source.within(_GOOGLE) or not source.network:
            if target.path and not source.within(_GOOGLE) and not target.external:
                return self._drop(f"{target.name} has no external address")
            return self._enters()
        if not source.peered and not self.passes("EGRESS"):
            return False
        address = IPv4Address(target.address)
        for subnet in networks.subnets(self.cloud, source.network):
            if address in (block := networks.range_of(subnet)):
                self.steps.append(f"route   subnetwork {subnet['name']}, {block}")
                return self._enters()
        for _, node in self.cloud.store.items(api.NODE):
            peered = node.get("cidrBlock") if node["apiVersion"] == "V1" else None
            if peered and node["_network"] == source.network and address in IPv4Network(peered):
                self.steps.append(f"route   peering, {peered}")
                # Google's network lets it in: cloud.google.com/tpu/docs/internal-ip-blocks.
                self.steps.append("forward into Google's own network")
                return True
        return self._leaves()

    # A machine that is off still lets the rules be judged first: they are what the question is
    # about.
    def _enters(self) -> bool:
        target = self.target
        if not target.path:
            return self._drop(f"no machine has the address {target.address}")
        if not self.passes("INGRESS"):
            return False
        return target.running or self._drop(f"{target.name} is not running")

    def _leaves(self) -> bool:
        """Take a route to the internet: others are not made here."""
        source, routes = self.source, f"{_project(self.source.network)}/global/routes/"
        for _, route in self.cloud.store.items(STORE, routes):
            own = route["network"] == url_of(source.network)
            tagged = not route.get("tags") or source.tags & set(route["tags"])
            if own and tagged and _within(self.target, [route["destRange"]]):
                self.steps.append(f"route   {route['name']}, {route['destRange']}")
                break
        else:
            return self._drop("no route")
        if self.target.within(networks.PRIVATE):
            return self._drop("the internet has no private addresses")
        if source.external:
            return True
        if nat := _nat(self.cloud, source.subnet):
            self.steps.append(f"nat     {nat}")
            return True
        return self._drop("no external address and no Cloud NAT")

    def _drop(self, cause: str) -> bool:
        self.steps.append(f"drop    {cause}")
        return False

    def passes(self, direction: str) -> bool:
        """Return whether the firewall lets it out (EGRESS) or in, and note which rule decides."""
        end = self.target if direction == "INGRESS" else self.source
        at = f"{_project(end.network)}/global/firewalls/"
        rules = [
            rule
            for _, rule in self.cloud.store.items(STORE, at)
            if rule["network"] == url_of(end.network)
            and rule["direction"] == direction
            and not rule["disabled"]
            and self._matches(rule, end)
        ]
        if rules:
            rule = min(rules, key=lambda r: (r["priority"], bool(r.get("allowed")), r["name"]))
            allowed = bool(rule.get("allowed"))
            by = f"rule {rule['name']}, priority {rule['priority']}"
        else:
            allowed, by = direction == "EGRESS", "the implied rule, priority 65535"
        self.steps.append(f"{direction.lower():8}{'allowed' if allowed else 'denied'} by {by}")
        return allowed

    def _matches(self, rule: Record, end: End) -> bool:
        """Return whether a rule is for the machine at `end` and for the packet."""
        targets = rule.get("targetTags"), rule.get("targetServiceAccounts")
        # A rule without targets is for all machines.
        if any(targets) and not _has(end, *targets):
            return False
        if not any(self._covered(entry) for entry in rule.get("allowed") or rule["denied"]):
            return False
        if (blocks := rule.get("destinationRanges")) and not _within(self.target, blocks):
            return False
        source, blocks = self.source, rule.get("sourceRanges")
        tags, accounts = rule.get("sourceTags"), rule.get("sourceServiceAccounts")
        if not (blocks or tags or accounts) or (blocks and _within(source, blocks)):
            return True
        # Tags and accounts are those of a machine's own interface in this very network.
        own = url_of(source.network) == rule["network"] and not source.peered
        return own and _has(source, tags, accounts)

    # Ports are single ones or ranges. Without ports all are meant.
    def _covered(self, entry: Record) -> bool:
        if entry["IPProtocol"].lower() not in _PROTOCOLS:
            return False
        listed = [text.partition("-") for text in entry.get("ports", ())]
        return not listed or any(
            int(low) <= self.port <= int(high or low) for low, _, high in listed
        )


def answer(cloud: Cloud, source: str, destination: str) -> Json:
    """Return whether a machine reaches another, and the routes and rules that decide.

    Args:
        cloud: the cloud.
        source: name of a VM, of a TPU (its host 0), `TPU/HOST`, or an address.
        destination: the same with `:PORT`, and `grpc://` before it or not.

    Raises:
        ApiError: 400 for a malformed or ambiguous end, 404 for one that doesn't exist.
    """
    known = list(_machines(cloud))
    name, _, text = destination.removeprefix("grpc://").rpartition(":")
    if not name or not text.isdecimal() or not 0 < int(text) < 65536:
        raise invalid(f"destination {destination!r} is not NAME:PORT with a port of 1 to 65535")
    served = [machine for machine in known if machine.served == (name, int(text))]
    # What the API reports here is where Google's TPUs listen at the standard port.
    to, port = (served[0], hosts.STANDARD) if served else (_end(known, name), int(text))
    start = _end(known, source)
    # A private address without a machine is in the network of the other end.
    if not start.path and start.within(networks.PRIVATE):
        start = End(start.address, to.network)
    packet = _Packet(cloud, start, to, port)
    reached = packet.arrives()
    ends = {"source": str(start), "destination": str(to)}
    return {**ends, "port": port, "reached": reached, "steps": packet.steps}


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


def _nat(cloud: Cloud, subnet: str) -> str:
    """Return the name of the Cloud NAT that serves a subnetwork, or an empty string."""
    record = cloud.store.get(STORE, subnet)
    if record is not None:
        at = f"{_project(subnet)}/regions/{last(record['region'])}/routers/"
        for _, router in cloud.store.items(STORE, at):
            for nat in router.get("nats", ()) if router["network"] == record["network"] else ():
                served = [entry["name"] for entry in nat.get("subnetworks", ())]
                if not served or record["selfLink"] in served:
                    return str(nat["name"])
    return ""


def _project(path: str) -> str:
    return "/".join(path.split("/")[:2])


def _has(end: End, tags: list[str] | None, accounts: list[str] | None) -> bool:
    return bool(end.tags & set(tags or ())) or end.account in (accounts or ())


def _within(end: End, blocks: list[str]) -> bool:
    return any(IPv4Address(end.address) in ip_network(text, strict=False) for text in blocks)


# Each interface is an end of its own, with the addresses of its network.
def _machines(cloud: Cloud) -> Iterator[End]:
    """Yield every interface of every machine."""
    for path, record in cloud.store.items(STORE, "projects/"):
        if path.split("/")[-2] != "instances":
            continue
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
    for name, record in cloud.store.items(api.NODE):
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
    for _, record in cloud.store.items(api.NODE):
        for index, path in enumerate(hosts.keys(record)):
            host = by_path.get(path)
            if host and host.running and not host.peered:
                near = [host, *(other for other in known if other.network == host.network)]
                packets = [_Packet(cloud, client, host, hosts.STANDARD) for client in near]
                admitted = any(p.passes("EGRESS") and p.passes("INGRESS") for p in packets)
                hosts.shut(cloud, record, index, hosts.is_deaf(cloud, record) or not admitted)


@resources.changed
def _rules_changed(cloud: Cloud, path: str) -> None:
    if "/firewalls/" in path:
        shut_ports(cloud)


@instance_records.started
def _machine_started(cloud: Cloud, path: str) -> None:
    shut_ports(cloud)
