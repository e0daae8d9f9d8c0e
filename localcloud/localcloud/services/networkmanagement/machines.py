"""Everything that has an address in a network: VMs, and the hosts of TPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from localcloud.core.cloud import Cloud
from localcloud.core.store import Record
from localcloud.services.compute.api import STORE
from localcloud.services.compute.links import last, path_from
from localcloud.services.tpu import hosts
from localcloud.services.tpu.api import NODE


@dataclass(frozen=True)
class Machine:
    """A machine's interface in a network.

    Attributes:
        path: of the instance; of a TPU's host the node's name with `/hosts/INDEX`.
        name: as people call it; a TPU's host is `TPU/INDEX`.
        network: path of its network; of a classic node's host the one that Google's is peered with.
        subnet: path of its subnetwork; empty for a classic node's host.
        address: its internal address.
        external: its external address, or empty.
        account: e-mail of its service account, or empty.
        peered: it is in Google's own network, whose rules nobody sees.
        served: where a TPU's host really listens; (address, port) as its API reports them.
    """

    path: str
    name: str
    network: str
    subnet: str
    address: str
    external: str
    tags: frozenset[str]
    account: str
    running: bool
    interface: str = "nic0"
    peered: bool = False
    served: tuple[str, int] | None = None


def all_of(cloud: Cloud) -> Iterator[Machine]:
    """Return every interface of every machine."""
    for path, record in cloud.store.items(STORE, "projects/"):
        if path.split("/")[-2] == "instances":
            yield from _of_instance(path, record)
    for name, record in cloud.store.items(NODE):
        yield from _of_node(name, record)


def _of_instance(path: str, record: Record) -> Iterator[Machine]:
    accounts = record.get("serviceAccounts") or [{}]
    for interface in record["networkInterfaces"]:
        configs = interface.get("accessConfigs") or [{}]
        yield Machine(
            path=path,
            name=record["name"],
            network=path_from(interface["network"]),
            subnet=path_from(interface["subnetwork"]),
            address=interface["networkIP"],
            external=configs[0].get("natIP", ""),
            tags=frozenset(record["tags"].get("items", ())),
            account=accounts[0].get("email", ""),
            running=record["status"] == "RUNNING",
            interface=interface["name"],
        )


def _of_node(name: str, record: Record) -> Iterator[Machine]:
    classic = isinstance(record["serviceAccount"], str)
    subnets = (path_from(url) for url in record["_uses"] if "/subnetworks/" in url)
    subnet = next(subnets, "")
    endpoints = record.get("networkEndpoints", [])
    for index, address in enumerate(record.get("_addresses", [])):
        yield Machine(
            path=hosts.keys(record)[index],
            name=f"{last(name)}/{index}",
            network=record["_network"],
            subnet=subnet,
            address=address,
            external=endpoints[index].get("accessConfig", {}).get("externalIp", ""),
            tags=frozenset(record.get("tags", ())),
            # Nobody has shown that rules for an account hold for the hosts of TPU VMs.
            account="",
            running=record["state"] == "READY",
            peered=classic,
            served=(endpoints[index]["ipAddress"], endpoints[index]["port"]),
        )
