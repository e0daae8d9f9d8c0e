"""Addresses: the free ones of a subnetwork, and the interfaces of instances that have them."""

from ipaddress import IPv4Network

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.compute import networks, resources
from localcloud.services.compute.api import STORE, path_from, path_of, url_of, wrong_value
from localcloud.services.compute.instance_records import INSTANCE

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
        "natIP": _take_address(cloud, "external", _EXTERNAL, path),
        "networkTier": sent.get("networkTier", "PREMIUM"),
    }


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


@resources.changes(INSTANCE, "addAccessConfig")
def _add_access_config(cloud: Cloud, call: Call, record: Record) -> None:
    interface = _find(record, call.arg("networkInterface"))
    if interface.get("accessConfigs"):
        raise invalid("At most one access config currently supported.")
    _may(cloud, call, "compute.subnetworks.useExternalIp", interface["subnetwork"])
    interface["accessConfigs"] = [_access_config(cloud, INSTANCE.path(call), call.body)]


# The address stays with the instance until that is deleted.
@resources.changes(INSTANCE, "deleteAccessConfig")
def _delete_access_config(cloud: Cloud, call: Call, record: Record) -> None:
    name, interface = call.arg("accessConfig"), _find(record, call.arg("networkInterface"))
    if name not in [config["name"] for config in interface.get("accessConfigs", ())]:
        raise wrong_value("accessConfig", name, "Not found.")
    interface.pop("accessConfigs")


@resources.changes(INSTANCE, "setSecurityPolicy")
def set_security_policy(cloud: Cloud, call: Call, record: Record) -> None:
    """Accept an empty policy: Google's provider sends one with every change of an access config."""
    for name in call.body.get("networkInterfaces", []):
        _find(record, name)
    if call.body.get("securityPolicy"):
        raise ApiError(501, "the local cloud has no security policies")
