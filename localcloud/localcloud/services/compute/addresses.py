"""Addresses: reserved ones, the free ones of a subnetwork, and the interfaces of instances."""

from ipaddress import IPv4Address, IPv4Network

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.compute import catalog, networks, resources
from localcloud.services.compute.api import STORE, last, path_from, path_of, url_of, wrong_value
from localcloud.services.compute.instance_records import INSTANCE, instance_changes


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    # Google takes labels with a new address and forgets them: only setLabels makes some.
    record.pop("labels", None)
    record["status"] = "RESERVED"
    if record.get("ipVersion") == "IPV6":
        raise ApiError(501, "the local cloud has no IPv6 addresses")
    network, wanted = record.get("network", ""), record.get("address", "")
    if record["addressType"] == "EXTERNAL":
        if "/global/" in path:
            record.setdefault("ipVersion", "IPV4")
        if wanted:
            raise invalid("An external address cannot be chosen; leave 'address' out.")
        record["address"] = reserve_external(cloud, path)
    elif "region" in call.params:
        path_of_network = networks.require_network(cloud, call.project, record.pop("network", ""))
        reference, zone = record.get("subnetwork", ""), f"{call.params['region']}-a"
        subnet = networks.require_subnetwork(
            cloud, call.project, zone, reference, "" if reference else path_of_network
        )
        resources.require_permission(cloud, call, "compute.subnetworks.use")
        record["subnetwork"] = subnet["selfLink"]
        record.setdefault("purpose", "GCE_ENDPOINT")
        record["address"] = reserve(cloud, subnet, path, wanted)
    else:
        # A range for private services access, any free one if only its length is given. Source:
        # cloud.google.com/vpc/docs/configure-private-services-access.
        record["network"] = url_of(networks.require_network(cloud, call.project, network))
        length = int(record.get("prefixLength", 0))
        if not wanted and not 8 <= length < 30:
            why = "Must be between 8 and 29 for a range without an address."
            raise wrong_value("resource.prefixLength", length, why)
        record["address"] = wanted or _free_range(cloud, record["network"], length)


# Ranges of subnetworks and those that are reserved already must not overlap: the peering exports
# both.
def _free_range(cloud: Cloud, network: str, length: int) -> str:
    taken = networks.taken_ranges(cloud, path_from(network))
    taken += [
        IPv4Network((other["address"], other["prefixLength"]), strict=False)
        for _, other in cloud.store.items(STORE, "projects/")
        if other.get("network") == network and other.get("prefixLength")
    ]
    for block in networks.PRIVATE[0].subnets(new_prefix=length):
        if not any(block.overlaps(other) for other in taken):
            return str(block.network_address)
    raise invalid(f"No free range with the prefix length {length} is left in '{network}'.")


def _remove(cloud: Cloud, path: str, record: Json) -> None:
    if record.get("users"):
        raise resources.in_use(path, record["users"][0])
    release(cloud, path)


def _serve(methods: str, scope: resources.Scope) -> None:
    resources.serve(
        resources.Kind(
            methods=methods,
            collection="addresses",
            parameter="address",
            scope=scope,
            defaults={"addressType": "EXTERNAL", "description": "", "networkTier": "PREMIUM"},
            prepare=_prepare,
            remove=_remove,
            labelled=True,
            latency="address",
        )
    )


_serve("addresses", "regions")
# Google has other methods and permissions for global ones, in a collection of the same name.
_serve("globalAddresses", "global")


def give_back(cloud: Cloud, instance: str, address: str = "") -> None:
    """Mark the addresses that an instance used as free: all, or only `address`.

    A reserved address stays reserved: it has an owner of its own.
    """
    project = "/".join(instance.split("/")[:2])
    for path, record in cloud.store.items(STORE, f"{project}/regions/"):
        if "/addresses/" not in path or record.get("users") != [url_of(instance)]:
            continue
        if not address or record["address"] == address:
            free: Record = {key: value for key, value in record.items() if key != "users"}
            cloud.store.put(STORE, path, free | {"status": "RESERVED"})


# Which addresses are taken, and the next free one.

_TAKEN = "compute-ip"
# 198.18.0.0/15 is reserved for tests (RFC 2544): no machine answers there.
_EXTERNAL = IPv4Network("198.18.0.0/15")


def reserve(cloud: Cloud, subnet: Record, owner: str, wanted: str = "") -> str:
    """Reserve an internal address for the resource at `owner`: `wanted`, or the next free one.

    It is 400 when `wanted` is outside the range or taken, or nothing is free.
    """
    network = IPv4Network(subnet["ipCidrRange"])
    if wanted and IPv4Address(wanted) not in network:
        why = f"The address is outside the subnetwork's range {network}."
        raise wrong_value("networkIP", wanted, why)
    return _take_address(cloud, path_from(subnet["selfLink"]), network, owner, wanted)


def reserve_external(cloud: Cloud, owner: str) -> str:
    """Take an external address for `owner`, out of a range that is routed nowhere.

    A program that used one by mistake would fail, not reach a stranger.
    """
    return _take_address(cloud, "external", _EXTERNAL, owner, "")


def release(cloud: Cloud, owner: str) -> None:
    """Release every address that `owner` holds.

    The store has one record a range, with the owner of each address: there is nothing else to look
    up.
    """
    with cloud.store.locked():
        for key, taken in cloud.store.items(_TAKEN):
            left = {address: holder for address, holder in taken.items() if holder != owner}
            if not left:
                cloud.store.delete(_TAKEN, key)
            elif left != taken:
                cloud.store.put(_TAKEN, key, left)


def _take_address(cloud: Cloud, key: str, network: IPv4Network, owner: str, wanted: str) -> str:
    with cloud.store.locked():
        taken = cloud.store.get(_TAKEN, key) or {}
        if wanted and taken.get(wanted, owner) != owner:
            message = f"Specified IP address '{wanted}' is in-use by '{taken[wanted]}'."
            raise ApiError(400, message, reason="IP_IN_USE_BY_ANOTHER_RESOURCE")
        # Google keeps the first two and the last two addresses of every subnet for itself.
        offsets = range(2, network.num_addresses - 2)
        free = (str(network[offset]) for offset in offsets if str(network[offset]) not in taken)
        address = wanted or next(free, "")
        if not address:
            message = f"IP space of '{network}' is exhausted."
            raise ApiError(400, message, reason="IP_SPACE_EXHAUSTED")
        cloud.store.put(_TAKEN, key, taken | {address: owner})
        return address


# Network interfaces of instances.


def plan_interfaces(cloud: Cloud, call: Call, zone: str, sent: list[Json]) -> list[Json]:
    """Return the interfaces of a new instance without their addresses, checked.

    Addresses are taken last: a request that is refused must not hold one.
    """
    if not sent:
        why = "At least one network interface is required."
        raise wrong_value("resource.networkInterfaces", "", why)
    planned = []
    for number, interface in enumerate(sent):
        reference = interface.get("subnetwork", "")
        network = interface.get("network", "")
        path = _network(cloud, call, number, network) if network or not reference else ""
        subnet = networks.require_subnetwork(cloud, call.project, zone, reference, path)
        _may(cloud, call, "compute.subnetworks.use", subnet["selfLink"])
        if len(interface.get("accessConfigs", [])) > 1:
            raise invalid("At most one access config currently supported.")
        if interface.get("accessConfigs"):
            _may(cloud, call, "compute.subnetworks.useExternalIp", subnet["selfLink"])
        planned.append(
            {
                **{k: v for k, v in interface.items() if k not in ("fingerprint", "kind")},
                "kind": "compute#networkInterface",
                "name": f"nic{number}",
                "network": subnet["network"],
                "subnetwork": subnet["selfLink"],
                "stackType": interface.get("stackType", "IPV4_ONLY"),
            }
        )
    return planned


def _network(cloud: Cloud, call: Call, number: int, reference: str) -> str:
    """Return the path of a network; a missing one is another error here than elsewhere.

    Source: github.com/GoogleCloudPlatform/magic-modules/pull/18826 (2026).
    """
    try:
        return networks.require_network(cloud, call.project, reference)
    except ApiError as error:
        if error.code != 404:
            raise
        url = url_of(path_of(reference or "global/networks/default", call.project))
        why = "The referenced network resource cannot be found."
        raise wrong_value(f"resource.networkInterfaces[{number}].network", url, why) from None


def address_interfaces(cloud: Cloud, path: str, planned: list[Json]) -> list[Json]:
    """Give planned interfaces their addresses; `path` is the instance, which holds them.

    An address that is reserved is held by its own resource, so that it outlives the instance.
    """
    for interface in planned:
        subnet = cloud.store.get(STORE, path_from(interface["subnetwork"])) or {}
        wanted = interface.get("networkIP", "")
        holder = wanted and _take_reserved(cloud, path, wanted, subnetwork=subnet["selfLink"])
        interface["networkIP"] = reserve(cloud, subnet, holder or path, wanted)
        configs = interface.pop("accessConfigs", [])
        if configs:
            interface["accessConfigs"] = [access_config(cloud, path, c) for c in configs]
        resources.stamp(interface)
    return planned


def access_config(cloud: Cloud, path: str, sent: Json) -> Json:
    """Return an access config with its external address: the one it names or a new one."""
    wanted = sent.get("natIP", "")
    if wanted:
        region = _region(path)
        if not _take_reserved(cloud, path, wanted, addressType="EXTERNAL"):
            raise invalid(
                "Invalid value for field 'accessConfigs[0].natIP': The specified external IP "
                f"address '{wanted}' was not found in region '{last(region)}'."
            )
    return {
        **sent,
        "kind": "compute#accessConfig",
        "type": sent.get("type", "ONE_TO_ONE_NAT"),
        "name": sent.get("name", "External NAT"),
        "natIP": wanted or reserve_external(cloud, path),
        "networkTier": sent.get("networkTier", "PREMIUM"),
    }


def _take_reserved(cloud: Cloud, instance: str, address: str, **fields: str) -> str:
    """Mark the reserved address with these fields as used; its path, or empty if there is none."""
    for path, record in cloud.store.items(STORE, _region(instance)):
        if "/addresses/" not in path or record.get("address") != address:
            continue
        if any(record.get(name) != value for name, value in fields.items()):
            continue
        if record.get("users"):
            raise resources.in_use(path, path_from(record["users"][0]))
        used = {"status": "IN_USE", "users": [url_of(instance)]}
        cloud.store.put(STORE, path, record | used)
        return path
    return ""


def _region(path: str) -> str:
    """Return the path of an instance's region."""
    project, zone = path.split("/")[1], path.split("/")[3]
    return f"projects/{project}/regions/{catalog.region_of(zone)}"


# The right counts on the subnetwork itself or on its project, which with a Shared VPC is another
# one than the caller's.
def _may(cloud: Cloud, call: Call, permission: str, subnet: str) -> None:
    path = path_from(subnet)
    access.require(cloud, call.principal, permission, [path, "/".join(path.split("/")[:2])])


def _find(record: Record, name: str) -> int:
    for number, interface in enumerate(record["networkInterfaces"]):
        if interface["name"] == name:
            return number
    raise wrong_value("networkInterface", name, "There is no such interface.")


@instance_changes("addAccessConfig")
def _add_access_config(cloud: Cloud, call: Call, record: Record) -> None:
    path = INSTANCE.path(call)
    interface = record["networkInterfaces"][_find(record, call.arg("networkInterface"))]
    if interface.get("accessConfigs"):
        raise invalid("At most one access config currently supported.")
    _may(cloud, call, "compute.subnetworks.useExternalIp", interface["subnetwork"])
    interface["accessConfigs"] = [access_config(cloud, path, call.body)]


# An ephemeral address stays with the instance until it is deleted; only a reserved one is free at
# once.
@instance_changes("deleteAccessConfig")
def _delete_access_config(cloud: Cloud, call: Call, record: Record) -> None:
    name = call.arg("accessConfig")
    interface = record["networkInterfaces"][_find(record, call.arg("networkInterface"))]
    configs = interface.get("accessConfigs", [])
    left = [config for config in configs if config["name"] != name]
    if len(left) == len(configs):
        raise wrong_value("accessConfig", name, "Not found.")
    interface.pop("accessConfigs")
    give_back(cloud, path_from(record["selfLink"]), configs[0]["natIP"])


@instance_changes("setSecurityPolicy")
def set_security_policy(cloud: Cloud, call: Call, record: Record) -> None:
    """Accept an empty policy: Google's provider sends one with every change of an access config."""
    for name in call.body.get("networkInterfaces", []):
        _find(record, name)
    if call.body.get("securityPolicy"):
        raise ApiError(501, "the local cloud has no security policies")


@instance_changes("updateNetworkInterface")
def update_network_interface(cloud: Cloud, call: Call, record: Record) -> None:
    """Change an interface's settings; its subnet and address stay."""
    number = _find(record, call.arg("networkInterface"))
    before = record["networkInterfaces"][number]
    resources.require_match(
        call.body.get("fingerprint"), before["fingerprint"], "network interface"
    )
    for field in ("network", "subnetwork", "networkIP"):
        sent = call.body.get(field)
        if sent and path_from(sent).rpartition("/projects/")[2] not in before[field]:
            raise ApiError(501, f"the local cloud cannot change '{field}' of an existing interface")
    kept = {k: before[k] for k in ("network", "subnetwork", "networkIP", "name", "kind")}
    record["networkInterfaces"][number] = changed = before | call.body | kept
    resources.stamp(changed)
