"""Which addresses are taken, and the next free one."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.core.store import Record
from localcloud.services.compute.links import path_from

_KIND = "compute-ip"
# 198.18.0.0/15 is set aside for tests (RFC 2544): nobody's machine answers there.
_EXTERNAL = IPv4Network("198.18.0.0/15")
_EXTERNAL_KEY = "external"


def reserve(cloud: Cloud, subnet: Record, owner: str, wanted: str = "") -> str:
    """Take an internal address for `owner`.

    Args:
        cloud: the cloud.
        subnet: the subnetwork's record.
        owner: path of the resource that gets it.
        wanted: a certain address, or empty for the next free one.

    Raises:
        ApiError: 400 when `wanted` is outside the range or taken, or nothing is free.
    """
    network = IPv4Network(subnet["ipCidrRange"])
    if wanted and IPv4Address(wanted) not in network:
        raise invalid(
            f"Invalid value for field 'networkIP': '{wanted}'. The address is outside the "
            f"subnetwork's range {network}."
        )
    return _take(cloud, path_from(subnet["selfLink"]), network, owner, wanted)


def reserve_external(cloud: Cloud, owner: str) -> str:
    """Take an external address for `owner`, out of a range that is routed nowhere."""
    return _take(cloud, _EXTERNAL_KEY, _EXTERNAL, owner, "")


def release(cloud: Cloud, owner: str) -> None:
    """Give back every address that `owner` holds."""
    with cloud.store.locked():
        for key, taken in cloud.store.items(_KIND):
            left = {address: holder for address, holder in taken.items() if holder != owner}
            if not left:
                cloud.store.delete(_KIND, key)
            elif left != taken:
                cloud.store.put(_KIND, key, left)


def _take(cloud: Cloud, key: str, network: IPv4Network, owner: str, wanted: str) -> str:
    with cloud.store.locked():
        taken = cloud.store.get(_KIND, key) or {}
        if wanted and taken.get(wanted, owner) != owner:
            raise ApiError(
                400,
                f"Specified IP address '{wanted}' is in-use by '{taken[wanted]}'.",
                reason="IP_IN_USE_BY_ANOTHER_RESOURCE",
            )
        address = wanted or _next_free(network, taken)
        cloud.store.put(_KIND, key, taken | {address: owner})
        return address


def _next_free(network: IPv4Network, taken: Record) -> str:
    # Google keeps the first two and the last two addresses of every subnet for itself.
    for offset in range(2, network.num_addresses - 2):
        if str(network[offset]) not in taken:
            return str(network[offset])
    raise ApiError(400, f"IP space of '{network}' is exhausted.", reason="IP_SPACE_EXHAUSTED")
