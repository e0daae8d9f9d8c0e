"""The network of the VM and the TPU."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

import pulumi

from infra.components import compute


@dataclass(frozen=True)
class NetworkArgs:
    """The network to declare.

    Attributes:
        iap_range: the addresses that IAP forwards SSH from.
        grpc_ports: the ports of TPU workers.
        requires: what the network waits for; everything else waits for the network.
    """

    project: str
    region: str
    name: str
    subnet_range: IPv4Network
    iap_range: IPv4Network
    ssh_port: int
    grpc_ports: tuple[int, ...]
    requires: tuple[pulumi.Resource, ...] = ()


class Network(pulumi.ComponentResource):
    """The stack's own network: one subnet, Private Google Access and Cloud NAT.

    Nothing is open to the internet, on purpose: SSH comes in through IAP, and only machines of the
    subnet reach the TPU's ports.
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
            opts=pulumi.ResourceOptions.merge(
                child, pulumi.ResourceOptions(depends_on=list(args.requires))
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
        self._allow(args, network, "grpc", str(args.subnet_range), args.grpc_ports, child)
        self._allow(args, network, "iap-ssh", str(args.iap_range), (args.ssh_port,), child)
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

    @staticmethod
    def _allow(
        args: NetworkArgs,
        network: compute.Network,
        purpose: str,
        source: str,
        ports: tuple[int, ...],
        opts: pulumi.ResourceOptions,
    ) -> None:
        compute.Firewall(
            f"allow-{purpose}",
            name=f"{args.name}-{purpose}",
            project=args.project,
            network=network.id,
            direction="INGRESS",
            source_ranges=[source],
            allows=[{"protocol": "tcp", "ports": [str(port) for port in ports]}],
            opts=opts,
        )
