"""The addresses of a node's hosts in its network, which exist on paper.

A TPU VM's hosts have addresses of its subnetwork, a classic node's of its own block. Clients reach
all of them at `ports.ADDRESS`.
"""

from __future__ import annotations

from ipaddress import IPv4Network

from localcloud.core.cloud import Cloud
from localcloud.core.store import Record
from localcloud.services.compute import addresses
from localcloud.services.compute.api import STORE, path_from

# Google keeps the first two addresses of every range for itself.
_FIRST = 2


def reserve(cloud: Cloud, record: Record, count: int) -> list[str]:
    """Return the addresses of a node's hosts: those that it has, or new ones.

    Raises:
        ApiError: 400 when its subnetwork has no more.
    """
    if "_addresses" in record:
        known: list[str] = record["_addresses"]
        return known
    if "cidrBlock" in record:
        block = IPv4Network(record["cidrBlock"])
        return [str(block[_FIRST + index]) for index in range(count)]
    for url in record["_uses"]:
        subnet = cloud.store.get(STORE, path_from(url))
        if subnet and "ipCidrRange" in subnet:
            return [addresses.reserve(cloud, subnet, record["name"]) for _ in range(count)]
    return []


def release(cloud: Cloud, record: Record) -> None:
    """Give a deleted node's addresses back."""
    addresses.release(cloud, record["name"])
