"""An instance's network interfaces: subnets, internal and external addresses."""

from __future__ import annotations

from localcloud.core import access
from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.compute import addresses, catalog, ipam
from localcloud.services.compute.api import STORE
from localcloud.services.compute.fingerprints import require_match, stamp
from localcloud.services.compute.instances.records import KIND, changes
from localcloud.services.compute.links import last, path_from, path_of, url_of
from localcloud.services.compute.networks import require_network
from localcloud.services.compute.subnetworks import require_subnetwork
from localcloud.services.compute.usage import in_use

_EXTERNAL_NAT = "External NAT"


def plan(cloud: Cloud, call: Call, zone: str, sent: list[Json]) -> list[Json]:
    """Return the interfaces of a new instance without their addresses, checked."""
    if not sent:
        raise invalid(
            "Invalid value for field 'resource.networkInterfaces': ''. At least one network "
            "interface is required."
        )
    planned = []
    for number, interface in enumerate(sent):
        reference = interface.get("subnetwork", "")
        network = interface.get("network", "")
        path = _network(cloud, call, number, network) if network or not reference else ""
        subnet = require_subnetwork(cloud, call.project, zone, reference, path)
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
        return require_network(cloud, call.project, reference)
    except ApiError as error:
        if error.code != 404:
            raise
        url = url_of(path_of(reference or "global/networks/default", call.project))
        raise invalid(
            f"Invalid value for field 'resource.networkInterfaces[{number}].network': '{url}'. "
            "The referenced network resource cannot be found."
        ) from None


def address(cloud: Cloud, path: str, planned: list[Json]) -> list[Json]:
    """Give planned interfaces their addresses; `path` is the instance, which holds them."""
    for interface in planned:
        subnet = cloud.store.get(STORE, path_from(interface["subnetwork"])) or {}
        wanted = interface.get("networkIP", "")
        holder = _reserved(cloud, path, subnet, wanted) if wanted else ""
        interface["networkIP"] = ipam.reserve(cloud, subnet, holder or path, wanted)
        configs = interface.pop("accessConfigs", [])
        if configs:
            interface["accessConfigs"] = [access_config(cloud, path, c) for c in configs]
        stamp(interface)
    return planned


def access_config(cloud: Cloud, path: str, sent: Json) -> Json:
    """Return an access config with its external address: the one it names or a new one."""
    wanted = sent.get("natIP", "")
    if wanted:
        region = _region(path)
        holder = addresses.find(cloud, region, wanted, addressType="EXTERNAL")
        if not holder:
            raise invalid(
                "Invalid value for field 'accessConfigs[0].natIP': The specified external IP "
                f"address '{wanted}' was not found in region '{last(region)}'."
            )
        _take(cloud, holder, path)
    return {
        **sent,
        "kind": "compute#accessConfig",
        "type": sent.get("type", "ONE_TO_ONE_NAT"),
        "name": sent.get("name", _EXTERNAL_NAT),
        "natIP": wanted or ipam.reserve_external(cloud, path),
        "networkTier": sent.get("networkTier", "PREMIUM"),
    }


def _reserved(cloud: Cloud, path: str, subnet: Record, wanted: str) -> str:
    """Take the reserved internal address `wanted`; its path, or empty when it is not addresses."""
    holder = addresses.find(cloud, _region(path), wanted, subnetwork=subnet["selfLink"])
    if holder:
        _take(cloud, holder, path)
    return holder


def _take(cloud: Cloud, holder: str, path: str) -> None:
    users = (cloud.store.get(STORE, holder) or {}).get("users", [])
    if users:
        raise in_use(holder, path_from(users[0]))
    addresses.take(cloud, holder, path)


def _region(path: str) -> str:
    """Return path of the region that an instance lies in."""
    project, zone = path.split("/")[1], path.split("/")[3]
    return f"projects/{project}/regions/{catalog.region_of(zone)}"


def _may(cloud: Cloud, call: Call, permission: str, subnet: str) -> None:
    path = path_from(subnet)
    access.require(cloud, call.principal, permission, [path, "/".join(path.split("/")[:2])])


def _find(record: Record, name: str) -> int:
    for number, interface in enumerate(record["networkInterfaces"]):
        if interface["name"] == name:
            return number
    raise invalid(f"Invalid value for field 'networkInterface': '{name}'. There is no such one.")


@changes("addAccessConfig")
def add_access_config(cloud: Cloud, call: Call, record: Record) -> None:
    """Give an interface an external address."""
    path = KIND.path(call)
    interface = record["networkInterfaces"][_find(record, call.arg("networkInterface"))]
    if interface.get("accessConfigs"):
        raise invalid("At most one access config currently supported.")
    _may(cloud, call, "compute.subnetworks.useExternalIp", interface["subnetwork"])
    interface["accessConfigs"] = [access_config(cloud, path, call.body)]


@changes("deleteAccessConfig")
def delete_access_config(cloud: Cloud, call: Call, record: Record) -> None:
    """Take an interface's external address away."""
    name = call.arg("accessConfig")
    interface = record["networkInterfaces"][_find(record, call.arg("networkInterface"))]
    configs = interface.get("accessConfigs", [])
    left = [config for config in configs if config["name"] != name]
    if len(left) == len(configs):
        raise invalid(f"Invalid value for field 'accessConfig': '{name}'. Not found.")
    interface.pop("accessConfigs")
    addresses.give_back(cloud, path_from(record["selfLink"]), configs[0]["natIP"])


@changes("setSecurityPolicy")
def set_security_policy(cloud: Cloud, call: Call, record: Record) -> None:
    """Set no policy, as Google's provider does whenever an access config comes or goes."""
    for name in call.body.get("networkInterfaces", []):
        _find(record, name)
    if call.body.get("securityPolicy"):
        raise ApiError(501, "the local cloud has no security policies")


@changes("updateNetworkInterface")
def update_network_interface(cloud: Cloud, call: Call, record: Record) -> None:
    """Change an interface's settings; its subnet and address stay."""
    number = _find(record, call.arg("networkInterface"))
    before = record["networkInterfaces"][number]
    require_match(call.body.get("fingerprint"), before["fingerprint"], "network interface")
    for field in ("network", "subnetwork", "networkIP"):
        sent = call.body.get(field)
        if sent and path_from(sent).rpartition("/projects/")[2] not in before[field]:
            raise ApiError(501, f"the local cloud cannot change '{field}' of an existing interface")
    kept = {k: before[k] for k in ("network", "subnetwork", "networkIP", "name", "kind")}
    record["networkInterfaces"][number] = changed = before | call.body | kept
    stamp(changed)
