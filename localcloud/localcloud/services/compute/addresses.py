"""Reserved addresses, regional and global; one that an instance uses says so and must stay."""

from __future__ import annotations

from ipaddress import IPv4Network

from localcloud.core.call import Call, Json
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.compute import ipam
from localcloud.services.compute.api import STORE
from localcloud.services.compute.kinds import Kind, Scope
from localcloud.services.compute.links import path_from, url_of
from localcloud.services.compute.networks import require_network, subnets
from localcloud.services.compute.resources import require_permission, serve
from localcloud.services.compute.subnetworks import ranges, require_subnetwork
from localcloud.services.compute.usage import in_use

_PRIVATE = IPv4Network("10.0.0.0/8")


def _prepare(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    # Google takes labels with a new address and forgets them: only setLabels makes some.
    record.pop("labels", None)
    record["status"] = "RESERVED"
    if record.get("ipVersion") == "IPV6":
        raise ApiError(501, "the local cloud has no IPv6 addresses")
    if record["addressType"] == "EXTERNAL":
        _prepare_external(cloud, path, record)
    elif "region" in call.params:
        _prepare_internal(cloud, call, path, record)
    else:
        _prepare_range(cloud, call, record)


def _prepare_range(cloud: Cloud, call: Call, record: Json) -> None:
    """Keep a range for private services access, any free one if the caller says only its length.

    Source: cloud.google.com/vpc/docs/configure-private-services-access.
    """
    network = url_of(require_network(cloud, call.project, record.get("network", "")))
    length = int(record.get("prefixLength", 0))
    if not record.get("address") and not 8 <= length < 30:
        raise invalid(
            f"Invalid value for field 'resource.prefixLength': '{length}'. Must be between 8 and "
            "29 for a range without an address."
        )
    record["network"] = network
    record["address"] = record.get("address") or _free_range(cloud, network, length)


def _free_range(cloud: Cloud, network: str, length: int) -> str:
    taken = [block for subnet in subnets(cloud, path_from(network)) for block in ranges(subnet)]
    taken += [
        IPv4Network((other["address"], other["prefixLength"]), strict=False)
        for _, other in cloud.store.items(STORE, "projects/")
        if other.get("network") == network and other.get("prefixLength")
    ]
    for block in _PRIVATE.subnets(new_prefix=length):
        if not any(block.overlaps(other) for other in taken):
            return str(block.network_address)
    raise invalid(f"No free range with the prefix length {length} is left in '{network}'.")


def _prepare_external(cloud: Cloud, path: str, record: Json) -> None:
    if "/global/" in path:
        record.setdefault("ipVersion", "IPV4")
    if record.get("address"):
        raise invalid("An external address cannot be chosen; leave 'address' out.")
    record["address"] = ipam.reserve_external(cloud, path)


def _prepare_internal(cloud: Cloud, call: Call, path: str, record: Json) -> None:
    zone = f"{call.params['region']}-a"
    network = require_network(cloud, call.project, record.pop("network", ""))
    reference = record.get("subnetwork", "")
    subnet = require_subnetwork(cloud, call.project, zone, reference, "" if reference else network)
    require_permission(cloud, call, "compute.subnetworks.use")
    record["subnetwork"] = subnet["selfLink"]
    record.setdefault("purpose", "GCE_ENDPOINT")
    record["address"] = ipam.reserve(cloud, subnet, path, record.get("address", ""))


def _remove(cloud: Cloud, path: str, record: Json) -> None:
    if record.get("users"):
        raise in_use(path, record["users"][0])
    ipam.release(cloud, path)


def _serve(methods: str, scope: Scope) -> None:
    serve(
        Kind(
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
_serve("globalAddresses", "global")


def find(cloud: Cloud, prefix: str, address: str, **fields: str) -> str:
    """Return the path of the reserved address below `prefix` with these fields, or empty."""
    for path, record in cloud.store.items(STORE, prefix):
        fits = "/addresses/" in path and record.get("address") == address
        if fits and all(record.get(name) == value for name, value in fields.items()):
            return path
    return ""


def take(cloud: Cloud, path: str, instance: str) -> None:
    """Mark the address at `path` as used by an instance."""
    record = cloud.store.get(STORE, path) or {}
    used = {"status": "IN_USE", "users": [url_of(instance)]}
    cloud.store.put(STORE, path, record | used)


def give_back(cloud: Cloud, instance: str, address: str = "") -> None:
    """Mark the addresses that an instance used as free: all, or only `address`."""
    project = "/".join(instance.split("/")[:2])
    for path, record in cloud.store.items(STORE, f"{project}/regions/"):
        if "/addresses/" not in path or record.get("users") != [url_of(instance)]:
            continue
        if not address or record["address"] == address:
            free: Record = {key: value for key, value in record.items() if key != "users"}
            cloud.store.put(STORE, path, free | {"status": "RESERVED"})
