"""The address range of a classic node, which Google puts into a network of its own and peers."""

from __future__ import annotations

from ipaddress import IPv4Network

from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError, invalid
from localcloud.services.compute.networks import ranges, subnets
from localcloud.services.tpu.api import NODE, project_of
from localcloud.services.tpu.catalog import Accelerator

# Source: cloud.google.com/tpu/docs/internal-ip-blocks, "Manual IP address configuration".
_PRIVATE = [IPv4Network(text) for text in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")]
_AUTOMATIC = IPv4Network("10.240.0.0/12")


def accepted(cloud: Cloud, accelerator: Accelerator, network: str, wanted: str) -> str:
    """Return the range that a new node gets.

    Args:
        cloud: the cloud.
        accelerator: the node's type, which says how large the range must be.
        network: path of the network that it is peered with.
        wanted: in CIDR notation, or an address alone, or empty.

    Raises:
        ApiError: 400 for a range that is malformed, too small, not private, or taken.
    """
    taken = _taken(cloud, network)
    if not wanted:
        for candidate in _AUTOMATIC.subnets(new_prefix=accelerator.prefix):
            if not any(candidate.overlaps(other) for other, _ in taken):
                return str(candidate)
        raise ApiError(400, f"Network '{network}' has no free range for the node.")
    block = _parse(wanted, accelerator)
    if block.prefixlen > accelerator.prefix:
        raise invalid(
            f'Cloud TPU received an invalid CIDR block, "{wanted}": {accelerator.name} needs a '
            f"range of at least /{accelerator.prefix}."
        )
    if not any(block.subnet_of(private) for private in _PRIVATE):
        raise invalid(
            f'Cloud TPU received an invalid CIDR block, "{wanted}": it must be within '
            f"{', '.join(map(str, _PRIVATE))}."
        )
    for other, holder in taken:
        if block.overlaps(other):
            raise invalid(
                f'Cloud TPU received an invalid CIDR block, "{wanted}": it conflicts with '
                f"{other} of {holder}."
            )
    return str(block)


def _parse(text: str, accelerator: Accelerator) -> IPv4Network:
    try:
        return IPv4Network(text if "/" in text else f"{text}/{accelerator.prefix}")
    except ValueError as error:
        raise invalid(f'Cloud TPU received an invalid CIDR block, "{text}": {error}.') from None


def _taken(cloud: Cloud, network: str) -> list[tuple[IPv4Network, str]]:
    found = [
        (block, f"subnetwork '{subnet['name']}'")
        for subnet in subnets(cloud, network)
        for block in ranges(subnet)
    ]
    found += [
        (IPv4Network(node["cidrBlock"]), f"TPU node '{node['name']}'")
        for _, node in cloud.store.items(NODE, f"projects/{project_of(network)}/")
        if node.get("cidrBlock") and node["_network"] == network
    ]
    return found
