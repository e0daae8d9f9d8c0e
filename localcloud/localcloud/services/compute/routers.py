"""Cloud Routers, whose `nats` are Cloud NAT."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.services.compute.api import API
from localcloud.services.compute.kinds import Kind
from localcloud.services.compute.links import path_of, shown, url_of
from localcloud.services.compute.networks import require_own_network
from localcloud.services.compute.resources import load, require_name, serve

_NAT_DEFAULTS: Json = {
    "enableEndpointIndependentMapping": False,
    "endpointTypes": ["ENDPOINT_TYPE_VM"],
}
# A private NAT shares its ports out as they are needed, and always shows how long one rests.
_BY_TYPE: dict[str, Json] = {
    "PUBLIC": {"autoNetworkTier": "PREMIUM"},
    "PRIVATE": {"enableDynamicPortAllocation": True, "effectiveTcpTimeWaitTimeoutSec": 120},
}


def _complete_nats(cloud: Cloud, call: Call, record: Json) -> None:
    names = [nat.get("name", "") for nat in record.get("nats", [])]
    for name in names:
        require_name(name)
    if len(set(names)) < len(names):
        raise invalid(f"Invalid value for field 'resource.nats': two are named alike in {names}.")
    completed = []
    for nat in record.get("nats", []):
        nat.pop("initialNatIps", None)
        for entry in nat.get("subnetworks", []):
            path = path_of(entry["name"], call.project)
            load(cloud, path)
            entry["name"] = url_of(path)
        nat["natIps"] = [url_of(path_of(ip, call.project)) for ip in nat.get("natIps", [])]
        if not nat["natIps"]:
            del nat["natIps"]
        type_ = nat.get("type") or "PUBLIC"
        completed.append(_NAT_DEFAULTS | _BY_TYPE[type_] | nat | {"type": type_})
    if completed:
        record["nats"] = completed


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    record["network"] = url_of(require_own_network(cloud, call.project, record.get("network", "")))
    _complete_nats(cloud, call, record)


def _change(cloud: Cloud, call: Call, before: Json, after: Json) -> None:
    after["network"] = url_of(require_own_network(cloud, call.project, after["network"]))
    if before["network"] != after["network"]:
        raise invalid("The network of a router cannot be changed.")
    _complete_nats(cloud, call, after)


_KIND = Kind(
    collection="routers",
    parameter="router",
    scope="regions",
    defaults={"encryptedInterconnectRouter": False},
    prepare=_prepare,
    change=_change,
    also=("compute.networks.updatePolicy",),
    latency="network",
)
serve(_KIND)


@API.method("routers.getRouterStatus", permission="compute.routers.get")
def get_router_status(cloud: Cloud, call: Call) -> Json:
    """Answer what a router does: its NATs, without the addresses that no traffic uses here."""
    record = load(cloud, _KIND.path(call))
    status: Json = {"network": record["network"]}
    if record.get("nats"):
        status["natStatus"] = [
            {"name": nat["name"], "minExtraNatIpsNeeded": 0, "numVmEndpointsWithNatMappings": 0}
            for nat in record["nats"]
        ]
    return shown(call, {"kind": "compute#routerStatusResponse", "result": status})


@API.method("routers.getNatMappingInfo", permission="compute.routers.get")
def get_nat_mapping_info(cloud: Cloud, call: Call) -> Json:
    """Answer an empty list: machines of the local cloud reach the network without NAT."""
    load(cloud, _KIND.path(call))
    return {"kind": "compute#vmEndpointNatMappingsList", "id": call.params["router"]}
