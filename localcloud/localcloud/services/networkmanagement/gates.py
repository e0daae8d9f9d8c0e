"""Shuts the ports of TPU hosts that no machine may reach, so that clients hang as on Google.

All machines are processes on one address, so the kernel can't tell one client from another. What
can be held is the port as a whole: it is shut while the rules let neither a machine like the host
itself in, nor any VM that there is.
"""

from __future__ import annotations

from localcloud.core.cloud import Cloud
from localcloud.services.compute.instances.records import started
from localcloud.services.compute.resources import changed
from localcloud.services.networkmanagement import machines
from localcloud.services.networkmanagement.firewall import EGRESS, INGRESS, judge
from localcloud.services.networkmanagement.machines import Machine
from localcloud.services.networkmanagement.packets import Packet, Place
from localcloud.services.tpu import hosts, nodes
from localcloud.services.tpu.api import NODE


@nodes.served
def refresh(cloud: Cloud) -> None:
    """Look at every host's port anew."""
    known = list(machines.all_of(cloud))
    by_path = {machine.path: machine for machine in known}
    for _, record in cloud.store.items(NODE):
        for index, path in enumerate(hosts.keys(record)):
            machine = by_path.get(path)
            if machine and machine.running and not machine.peered:
                closed = hosts.is_deaf(cloud, record) or not _is_open(cloud, machine, known)
                hosts.shut(cloud, record, index, closed)


@changed
def _rules_changed(cloud: Cloud, path: str) -> None:
    if "/firewalls/" in path:
        refresh(cloud)


@started
def _machine_started(cloud: Cloud, path: str) -> None:
    refresh(cloud)


def _is_open(cloud: Cloud, host: Machine, known: list[Machine]) -> bool:
    """Return whether a machine like the host, or any that there is, gets in."""
    near = [host, *(other for other in known if other.network == host.network)]
    return any(_reaches(cloud, client, host) for client in near)


def _reaches(cloud: Cloud, client: Machine, host: Machine) -> bool:
    packet = Packet(Place.of(client), Place.of(host), "tcp", hosts.STANDARD)
    return all(judge(cloud, host.network, way, packet).allowed for way in (EGRESS, INGRESS))
