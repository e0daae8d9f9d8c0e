"""Settings of the network."""

from __future__ import annotations

from infra.settings.base import Section, Text


class NetworkSettings(Section):
    """The network of VM and TPU: one of the stack's own, or one that is there already."""

    create: bool = True
    """Make a network with a subnet, Private Google Access and Cloud NAT. false: use `network.name`.
    """
    project: Text | None = None
    """Project of the existing network, if it is another: the host project of a Shared VPC. Only
    with `network.create: false` and architecture vm.
    """
    name: Text | None = None
    """Name of the existing network (`default` if it is not set). Only with `network.create: false`.
    """
    subnetwork: Text | None = None
    """Name of its subnetwork in the TPU's region (the network's name if it is not set). Only with
    `network.create: false`.
    """
    subnet_range: Text | None = None
    """Address range of the subnetwork, for example 10.10.0.0/20. The stack's own network gets this
    range; in an existing network, a TPU node must not overlap it.
    """

    @property
    def given_name(self) -> str:
        """Return the name of the network that is there already."""
        return self.name or "default"

    @property
    def given_subnetwork(self) -> str:
        """Return the name of its subnetwork."""
        return self.subnetwork or self.given_name
