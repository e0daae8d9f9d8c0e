"""Addresses: reserved ones, the free ones of a subnetwork, and the interfaces of instances."""

from dataclasses import replace
from ipaddress import IPv4Network

from localcloud.core import ApiError, Call, Cloud, Json, Record, access, invalid
from localcloud.services.compute import catalog, instance_records, networks, resources
from localcloud.services.compute.api import STORE, path_from, path_of, url_of, wrong_value

# Reserved addresses: external ones, which outlive the instance that has them, and ranges for
# private services access. Internal addresses of a subnetwork are given out, not reserved.


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    # Google takes labels with a new address and forgets them: only setLabels makes some.
    record.pop("labels", None)
    record["status"], wanted = "RESERVED", record.get("address", "")
    if record.get("ipVersion") == "IPV6":
        raise ApiError(501, "the local cloud has no IPv6 addresses")
    if record["addressType"] == "EXTERNAL":
        if wanted:
            raise invalid("An external address cannot be chosen; leave 'address' out.")
        record["address"] = _take_address(cloud, "external", _EXTERNAL, path)
        if "/global/" in path:
            record.setdefault("ipVersion", "IPV4")
    elif "region" in call.params:
        raise ApiError(501, "the local cloud reserves no internal addresses")
    else:
        network = networks.require_network(cloud, call.project, record.get("network", ""))
        record["network"] = url_of(network)
        record["address"] = wanted or _free_range(cloud, network, record.get("prefixLength", 0))


# Ranges of subnetworks and those that are reserved already must not overlap: the peering exports
# both. Source: cloud.google.com/vpc/docs/configure-private-services-access.
def _free_range(cloud: Cloud, network: str, length: int) -> str:
    if not 8 <= length < 30:
        why = "Must be between 8 and 29 for a range without an address."
        raise wrong_value("resource.prefixLength", length, why)
    taken = [networks.range_of(subnet) for subnet in networks.subnets(cloud, network)]
    for _, other in cloud.store.items(STORE, "projects/"):
        if other.get("network") == url_of(network) and other.get("prefixLength"):
            taken.append(IPv4Network((other["address"], other["prefixLength"]), strict=False))
    for block in networks.PRIVATE[0].subnets(new_prefix=length):
        if not any(block.overlaps(other) for other in taken):
            return str(block.network_address)
    raise invalid(f"No free range with the prefix length {length} is left in '{network}'.")


def _remove(cloud: Cloud, path: str, record: Json) -> None:
    if record.get("users"):
        raise resources.in_use(path, path_from(record["users"][0]))
    release(cloud, path)


_ADDRESS = resources.Kind(
    collection="addresses",
    parameter="address",
    scope="regions",
    defaults={"addressType": "EXTERNAL", "description": "", "networkTier": "PREMIUM"},
    prepare=_prepare,
    remove=_remove,
    labelled=True,
    latency="address",
)
resources.serve(_ADDRESS)
# Google has other methods and permissions for global ones, in a collection of the same name.
resources.serve(replace(_ADDRESS, scope="global", methods="globalAddresses"))


# Which addresses are taken, and the next free one.

_TAKEN = "compute-ip"
# 198.18.0.0/15 is reserved for tests (RFC 2544): no machine answers there.
_EXTERNAL = IPv4Network("198.18.0.0/15")


def reserve(cloud: Cloud, subnet: Record, owner: str) -> str:
    """Reserve the subnetwork's next free address for the resource at `owner`; 400 for none."""
    key = path_from(subnet["selfLink"])
    return _take_address(cloud, key, networks.range_of(subnet), owner)


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


def _take_address(cloud: Cloud, key: str, network: IPv4Network, owner: str) -> str:
    with cloud.store.locked():
        taken = cloud.store.get(_TAKEN, key) or {}
        # Google keeps the first two and the last two addresses of every subnet for itself.
        for offset in range(2, network.num_addresses - 2):
            if (address := str(network[offset])) not in taken:
                cloud.store.put(_TAKEN, key, taken | {address: owner})
                return address
    message = f"IP space of '{network}' is exhausted."
    raise ApiError(400, message, reason="IP_SPACE_EXHAUSTED")


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
    """Give planned interfaces their addresses; `path` is the instance, which holds them."""
    for interface in planned:
        subnet = cloud.store.get(STORE, path_from(interface["subnetwork"])) or {}
        interface["networkIP"] = reserve(cloud, subnet, path)
        if configs := interface.pop("accessConfigs", []):
            interface["accessConfigs"] = [_access_config(cloud, path, configs[0])]
        resources.stamp(interface)
    return planned


def _access_config(cloud: Cloud, path: str, sent: Json) -> Json:
    return {
        **sent,
        "kind": "compute#accessConfig",
        "type": sent.get("type", "ONE_TO_ONE_NAT"),
        "name": sent.get("name", "External NAT"),
        # Its range is routed nowhere: a program that used the address would reach no stranger.
        "natIP": _take_reserved(cloud, path, sent["natIP"])
        if sent.get("natIP")
        else _take_address(cloud, "external", _EXTERNAL, path),
        "networkTier": sent.get("networkTier", "PREMIUM"),
    }


def _take_reserved(cloud: Cloud, instance: str, address: str) -> str:
    """Mark the region's reserved address as used by an instance; the address."""
    _, project, _, zone, *_ = instance.split("/")
    region = catalog.region_of(zone)
    for path, record in cloud.store.items(STORE, f"projects/{project}/regions/{region}/addresses/"):
        if record["address"] == address:
            if record.get("users"):
                raise resources.in_use(path, path_from(record["users"][0]))
            used = {"status": "IN_USE", "users": [url_of(instance)]}
            cloud.store.put(STORE, path, record | used)
            return address
    raise invalid(
        "Invalid value for field 'accessConfigs[0].natIP': The specified external IP address "
        f"'{address}' was not found in region '{region}'."
    )


def give_back(cloud: Cloud, instance: str, address: str = "") -> None:
    """Free the reserved addresses that an instance used: all of them, or only `address`."""
    at = f"{'/'.join(instance.split('/')[:2])}/regions/"
    for path, record in cloud.store.items(STORE, at):
        used = "/addresses/" in path and record.get("users") == [url_of(instance)]
        if used and address in ("", record["address"]):
            del record["users"]
            cloud.store.put(STORE, path, record | {"status": "RESERVED"})


# The right counts on the subnetwork itself or on its project, which with a Shared VPC is another
# one than the caller's.
def _may(cloud: Cloud, call: Call, permission: str, subnet: str) -> None:
    path = path_from(subnet)
    access.require(cloud, call.principal, permission, [path, "/".join(path.split("/")[:2])])


def _find(record: Record, name: str) -> Json:
    for interface in record["networkInterfaces"]:
        if interface["name"] == name:
            found: Json = interface
            return found
    raise wrong_value("networkInterface", name, "There is no such interface.")


@resources.changes(instance_records.INSTANCE, "addAccessConfig")
def _add_access_config(cloud: Cloud, call: Call, record: Record) -> None:
    interface = _find(record, call.arg("networkInterface"))
    if interface.get("accessConfigs"):
        raise invalid("At most one access config currently supported.")
    _may(cloud, call, "compute.subnetworks.useExternalIp", interface["subnetwork"])
    interface["accessConfigs"] = [
        _access_config(cloud, instance_records.INSTANCE.path(call), call.body)
    ]


# An address that is not reserved stays with the instance until that is deleted.
@resources.changes(instance_records.INSTANCE, "deleteAccessConfig")
def _delete_access_config(cloud: Cloud, call: Call, record: Record) -> None:
    name, interface = call.arg("accessConfig"), _find(record, call.arg("networkInterface"))
    if name not in [config["name"] for config in interface.get("accessConfigs", ())]:
        raise wrong_value("accessConfig", name, "Not found.")
    (config,) = interface.pop("accessConfigs")
    give_back(cloud, instance_records.INSTANCE.path(call), config["natIP"])


@resources.changes(instance_records.INSTANCE, "setSecurityPolicy")
def set_security_policy(cloud: Cloud, call: Call, record: Record) -> None:
    """Accept an empty policy: Google's provider sends one with every change of an access config."""
    for name in call.body.get("networkInterfaces", []):
        _find(record, name)
    if call.body.get("securityPolicy"):
        raise ApiError(501, "the local cloud has no security policies")
