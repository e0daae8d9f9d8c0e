"""The network of the VM and the TPU.

Machines have no public addresses: packages and images come in by Cloud NAT, Google's own APIs by
Private Google Access, without which the trainer would not reach its bucket.
"""

import pulumi
import pulumi_gcp as gcp

from tpu_infra import apis, names
from tpu_infra.checks import CheckedStack
from tpu_infra.checks.network import subnet_range
from tpu_infra.components.services import ProjectServices


class Network(pulumi.ComponentResource):
    """The stack's own network, or the one that the settings name.

    Its own has one subnet, Private Google Access and Cloud NAT. Nothing is open to the internet, on
    purpose: SSH comes in through IAP, and only machines with the stack's tag reach each other. They
    do so at all ports: which ones the hosts of slices use changes with the runtime
    (github.com/jax-ml/jax/issues/35905). By the tag, since Cloud TPU's API says of tags that they
    are sources and targets of firewall rules (Node.tags,
    docs.cloud.google.com/tpu/docs/reference/rest/v2/projects.locations.nodes, read 2026-11-24), and
    does not say so of the account.
    """

    network: pulumi.Output[str]
    subnetwork: pulumi.Output[str]
    egress: tuple[pulumi.Resource, ...] = ()
    """Ready once a machine without a public address can reach the internet."""

    def __init__(self, stack: CheckedStack, services: ProjectServices) -> None:
        super().__init__("tpu-stack:infra:Network", "network")
        settings = stack.settings
        if settings.network.create:
            self._declare(stack, services)
        else:
            given = settings.network
            project = given.project or settings.project
            self.network = pulumi.Output.from_input(
                f"projects/{project}/global/networks/{given.given_name}"
            )
            self.subnetwork = pulumi.Output.from_input(
                f"projects/{project}/regions/{settings.region}/subnetworks/{given.given_subnetwork}"
            )
        self.register_outputs({"network": self.network, "subnetwork": self.subnetwork})

    def _declare(self, stack: CheckedStack, services: ProjectServices) -> None:
        facts, name = stack.context.catalog.network, stack.names.network
        project, region = stack.settings.project, stack.settings.region
        child = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        network = gcp.compute.Network(
            "network",
            name=name,
            project=project,
            auto_create_subnetworks=False,
            description=stack.marked_description,
            opts=services.after(
                apis.COMPUTE_API,
                parent=self,
                delete_before_replace=True,
                ignore_changes=names.KEPT_DESCRIPTION,
            ),
        )
        subnetwork = gcp.compute.Subnetwork(
            "subnetwork",
            name=name,
            project=project,
            region=region,
            network=network.id,
            ip_cidr_range=str(subnet_range(stack.settings, stack.context)),
            private_ip_google_access=True,
            opts=child,
        )
        gcp.compute.Firewall(
            "allow-machines",
            name=f"{name}-machines",
            project=project,
            network=network.id,
            direction="INGRESS",
            source_tags=[name],
            target_tags=[name],
            allows=[{"protocol": "all"}],
            opts=child,
        )
        gcp.compute.Firewall(
            "allow-iap-ssh",
            name=f"{name}-iap-ssh",
            project=project,
            network=network.id,
            direction="INGRESS",
            source_ranges=[str(facts.iap_range)],
            allows=[{"protocol": "tcp", "ports": [str(facts.ssh_port)]}],
            opts=child,
        )
        router = gcp.compute.Router(
            "router", name=name, project=project, region=region, network=network.id, opts=child
        )
        nat = gcp.compute.RouterNat(
            "nat",
            name=name,
            project=project,
            region=region,
            router=router.name,
            nat_ip_allocate_option="AUTO_ONLY",
            source_subnetwork_ip_ranges_to_nat="ALL_SUBNETWORKS_ALL_IP_RANGES",
            opts=child,
        )
        self.egress = (nat,)
        self.network, self.subnetwork = network.id, subnetwork.id
