"""The network of the VM and the TPU."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi

from infra.components import compute, mark


@dataclass(frozen=True)
class NetworkArgs:
    """The network to declare.

    Attributes:
        iap_range: the addresses that IAP forwards SSH from.
        tag: what all of the stack's machines are tagged with.
        requires: what the network waits for; everything else waits for the network.
    """

    project: str
    region: str
    name: str
    subnet_range: IPv4Network
    iap_range: IPv4Network
    ssh_port: int
    tag: str
    requires: tuple[pulumi.Resource, ...] = ()


class Network(pulumi.ComponentResource):
    """The stack's own network: one subnet, Private Google Access and Cloud NAT.

    Nothing is open to the internet, on purpose: SSH comes in through IAP, and only machines with
    the stack's tag reach each other. They do so at all ports: which ones the hosts of slices use
    changes with the runtime (github.com/jax-ml/jax/issues/35905). By the tag, since Cloud TPU's API
    says of tags that they are sources and targets of firewall rules (Node.tags,
    docs.cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes, read 2026-11-24), and
    nobody says so of the account.
    """

    network: pulumi.Output[str]
    subnetwork: pulumi.Output[str]
    egress: pulumi.Resource
    """Ready once a machine without a public address can reach the internet."""

    def __init__(
        self, name: str, args: NetworkArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("tpu-stack:infra:Network", name, None, opts)
        child = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        network = compute.Network(
            "network",
            name=args.name,
            project=args.project,
            auto_create_subnetworks=False,
            description=mark.description(),
            opts=pulumi.ResourceOptions.merge(
                child,
                pulumi.ResourceOptions(
                    depends_on=list(args.requires), ignore_changes=mark.KEPT_DESCRIPTION
                ),
            ),
        )
        subnetwork = compute.Subnetwork(
            "subnetwork",
            name=args.name,
            project=args.project,
            region=args.region,
            network=network.id,
            ip_cidr_range=str(args.subnet_range),
            private_ip_google_access=True,
            opts=child,
        )
        compute.Firewall(
            "allow-machines",
            name=f"{args.name}-machines",
            project=args.project,
            network=network.id,
            direction="INGRESS",
            source_tags=[args.tag],
            target_tags=[args.tag],
            allows=[{"protocol": "all"}],
            opts=child,
        )
        compute.Firewall(
            "allow-iap-ssh",
            name=f"{args.name}-iap-ssh",
            project=args.project,
            network=network.id,
            direction="INGRESS",
            source_ranges=[str(args.iap_range)],
            allows=[{"protocol": "tcp", "ports": [str(args.ssh_port)]}],
            opts=child,
        )
        router = compute.Router(
            "router",
            name=args.name,
            project=args.project,
            region=args.region,
            network=network.id,
            opts=child,
        )
        self.egress = compute.RouterNat(
            "nat",
            name=args.name,
            project=args.project,
            region=args.region,
            router=router.name,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
            opts=child,
        )
        self.network = network.id
        self.subnetwork = subnetwork.id
        self.register_outputs({"network": self.network, "subnetwork": self.subnetwork})
