"""Routes: the one to the internet that every network has, and those that users add."""

from __future__ import annotations

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import invalid
from localcloud.services.compute.kinds import Kind
from localcloud.services.compute.links import path_of, url_of
from localcloud.services.compute.networks import require_own_network
from localcloud.services.compute.resources import serve

_HOPS = ("nextHopGateway", "nextHopInstance", "nextHopIp", "nextHopIlb", "nextHopVpnTunnel")


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    record["network"] = url_of(require_own_network(cloud, call.project, record.get("network", "")))
    hops = [hop for hop in _HOPS if record.get(hop)]
    if len(hops) != 1:
        raise invalid(f"Exactly one next hop must be given, got {hops or 'none'}.")
    if hops[0] not in ("nextHopIp", "nextHopIlb"):
        record[hops[0]] = url_of(path_of(record[hops[0]], call.project))


serve(
    Kind(
        collection="routes",
        parameter="route",
        scope="global",
        defaults={"priority": 1000},
        prepare=_prepare,
        latency="network",
    )
)
