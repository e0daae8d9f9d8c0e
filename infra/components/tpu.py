"""The TPU in its three forms; all of them look the same to the rest of the program."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.components.machine import CLOUD_PLATFORM, replace_for_another_job
from infra.settings.tpu import Capacity, TpuSettings


@dataclass(frozen=True)
class TpuArgs:
    """`metadata` and `account` are for TPU VMs; `grpc_port` is for endpoints without a port.

    `requires` is what the TPU waits for although none of its properties names it.
    """

    project: str
    zone: str
    name: str
    settings: TpuSettings
    network: pulumi.Input[str]
    subnetwork: pulumi.Input[str]
    account: pulumi.Input[str]
    metadata: Mapping[str, pulumi.Input[str]]
    labels: Mapping[str, str]
    grpc_port: int
    requires: tuple[pulumi.Resource, ...] = ()


class Tpu(pulumi.ComponentResource):
    """What every form of TPU has."""

    name: pulumi.Output[str]
    endpoints: pulumi.Output[list[str]]
    """`grpc://IP:PORT` of every worker, worker 0 first."""

    def __init__(
        self, name: str, args: TpuArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(f"tpu-stack:infra:{type(self).__name__}", name, None, opts)
        # The name is fixed, so the old one must be gone before the new one can be there.
        own = pulumi.ResourceOptions(
            parent=self, delete_before_replace=True, depends_on=list(args.requires)
        )
        self.declare(args, own)
        self.register_outputs({"name": self.name, "endpoints": self.endpoints})

    @abstractmethod
    def declare(self, args: TpuArgs, opts: pulumi.ResourceOptions) -> None:
        """Declares the resource and sets the outputs."""


class TpuVm(Tpu):
    """A TPU VM, asked for at once: the update fails if there is no capacity."""

    def declare(self, args: TpuArgs, opts: pulumi.ResourceOptions) -> None:
        """Declares a `gcp.tpu.V2Vm`."""
        tpu = args.settings
        tiers: Mapping[Capacity, gcp.tpu.V2VmSchedulingConfigArgsDict | None] = {
            Capacity.ON_DEMAND: None,
            Capacity.SPOT: {"spot": True},
            Capacity.PREEMPTIBLE: {"preemptible": True},
            Capacity.RESERVED: {"reserved": True},
        }
        vm = gcp.tpu.V2Vm(
            "tpu",
            name=args.name,
            project=args.project,
            zone=args.zone,
            accelerator_type=tpu.accelerator_type,
            runtime_version=required(tpu.runtime_version),
            network_config={
                "network": args.network,
                "subnetwork": args.subnetwork,
                "enable_external_ips": False,
            },
            scheduling_config=tiers[tpu.capacity],
            service_account={"email": args.account, "scopes": [CLOUD_PLATFORM]},
            metadata=dict(args.metadata),
            labels=dict(args.labels),
            opts=pulumi.ResourceOptions.merge(opts, replace_for_another_job(args.metadata)),
        )
        self.name = vm.name
        self.endpoints = vm.network_endpoints.apply(_endpoints(args.grpc_port))


class TpuNode(Tpu):
    """The classic TPU node, for projects that Google still lets create one."""

    account: pulumi.Output[str]
    """Google's own account that the node reads and writes the bucket with."""

    def declare(self, args: TpuArgs, opts: pulumi.ResourceOptions) -> None:
        """Declares a `gcp.tpu.Node`."""
        tpu = args.settings
        # Newer generations of the provider have no such class; the checks have made sure of it.
        provider: Any = gcp.tpu
        node = provider.Node(
            "tpu",
            name=args.name,
            project=args.project,
            zone=args.zone,
            accelerator_type=tpu.accelerator_type,
            tensorflow_version=required(tpu.tensorflow_version),
            network=args.network,
            cidr_block=tpu.cidr_block,
            scheduling_config=(
                {"preemptible": True} if tpu.capacity is Capacity.PREEMPTIBLE else None
            ),
            labels=dict(args.labels),
            opts=opts,
        )
        self.name = node.name
        self.account = node.service_account
        self.endpoints = node.network_endpoints.apply(_endpoints(args.grpc_port))


def required(version: str | None) -> str:
    """A version that the checks have made sure of."""
    if version is None:
        raise AssertionError("the checks require a version")
    return version


def _endpoints(grpc_port: int) -> Any:
    def urls(endpoints: Sequence[Any]) -> list[str]:
        return [f"grpc://{worker.ip_address}:{worker.port or grpc_port}" for worker in endpoints]

    return urls
