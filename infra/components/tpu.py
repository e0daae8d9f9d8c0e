"""The TPU: two of its three forms, and what all forms look like to the rest of the program."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pulumi
import pulumi_gcp as gcp

from infra.components import mark
from infra.components.declaration import declare_tpus
from infra.components.disks import Attached, DataDisks, DataDisksArgs
from infra.components.machine import Machine, custom_timeouts, replace_for_another_job
from infra.settings.tpu import Capacity, TpuSettings

# The API cannot change the labels of a classic node, and a label is no reason to replace a TPU.
_LABELS_ONCE = pulumi.ResourceOptions(ignore_changes=["labels", "effectiveLabels", "pulumiLabels"])


@dataclass(frozen=True)
class TpuArgs(Machine):
    """The TPU to declare.

    Attributes:
        names: the name of each slice.
        software: the runtime of a TPU VM, or the TensorFlow version of a classic node.
        grpc_port: the port of endpoints that name none.
        disk_type: the type of data disks that name none.
        taken: by the name of each TPU that Google has taken away, the description of the one that
            is made in its place.
        declared_in: the bucket in which the agent reads what to make anew; None without recovery.
    """

    names: tuple[str, ...]
    settings: TpuSettings
    software: str
    grpc_port: int
    disk_type: str
    taken: Mapping[str, str]
    declared_in: pulumi.Input[str] | None


class Tpu(pulumi.ComponentResource):
    """What all forms of TPU have in common."""

    name: pulumi.Output[str]
    """Name of the first slice."""
    names: pulumi.Output[list[str]]
    """Names of all slices."""
    zone: pulumi.Output[str]
    """Zone of all slices, at the last update or refresh."""
    endpoints: pulumi.Output[list[str]]
    """`grpc://IP:PORT` of every worker, worker 0 of the first slice first, slice by slice."""

    def __init__(
        self, name: str, args: TpuArgs, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__(f"tpu-stack:infra:{type(self).__name__}", name, None, opts)
        # Names are fixed: the old TPU must be gone before its replacement can be made.
        own = pulumi.ResourceOptions(
            parent=self,
            delete_before_replace=True,
            depends_on=list(args.requires),
            custom_timeouts=custom_timeouts(args.settings.timeouts),
        )
        self.zone = pulumi.Output.from_input(args.zone)
        self.declare(args, own)
        self.register_outputs({"name": self.name, "names": self.names, "endpoints": self.endpoints})

    @abstractmethod
    def declare(self, args: TpuArgs, opts: pulumi.ResourceOptions) -> None:
        """Declare the resource and set the outputs."""

    def data_disks(self, args: TpuArgs) -> DataDisks:
        """Declare the data disks."""
        disks = DataDisksArgs(
            project=args.project,
            zone=args.zone,
            name=args.name,
            tpus=args.names,
            disks=args.settings.data_disks,
            default_type=args.disk_type,
            labels=args.labels,
            requires=args.parts_require,
        )
        return DataDisks(disks, self)

    def anew_if_taken(
        self, args: TpuArgs, name: str, opts: pulumi.ResourceOptions
    ) -> pulumi.ResourceOptions:
        """Replace a TPU that Google has taken away; leave the description of any other alone.

        It is the one property that tells the new TPU from the old and changes nothing else.
        """
        if name not in args.taken:
            own = pulumi.ResourceOptions(ignore_changes=["description"])
        else:
            pulumi.log.info(
                f"Google has taken {name} away. `pulumi up` deletes it and makes it anew",
                resource=self,
            )
            own = pulumi.ResourceOptions(replace_on_changes=["description"])
        return pulumi.ResourceOptions.merge(opts, own)


class TpuVm(Tpu):
    """One or more TPU VMs without a queue: the update fails if there is no capacity."""

    def declare(self, args: TpuArgs, opts: pulumi.ResourceOptions) -> None:
        """Declare a `gcp.tpu.V2Vm` for each slice."""
        tpu = args.settings
        disks = self.data_disks(args)
        own = pulumi.ResourceOptions.merge(opts, replace_for_another_job(args.metadata))
        made = pulumi.ResourceOptions(depends_on=disks.made, ignore_changes=mark.KEPT_LABEL)
        own = pulumi.ResourceOptions.merge(own, made)
        same: dict[str, Any] = {
            "project": args.project,
            "zone": args.zone,
            "accelerator_type": tpu.accelerator_type,
            "runtime_version": args.software,
            "network_config": {
                "network": args.network,
                "subnetwork": args.subnetwork,
                "enable_external_ips": tpu.external_ips,
            },
            "scheduling_config": {
                Capacity.ON_DEMAND: None,
                Capacity.SPOT: {"spot": True},
                Capacity.PREEMPTIBLE: {"preemptible": True},
                Capacity.RESERVED: {"reserved": True},
            }[tpu.capacity],
            "shielded_instance_config": {"enable_secure_boot": True} if tpu.secure_boot else None,
            "service_account": {"email": args.account, "scopes": list(tpu.scopes)},
            "tags": [args.tag, *tpu.tags],
            "metadata": dict(args.metadata),
            "labels": mark.labels(args.labels),
        }
        slices = [
            gcp.tpu.V2Vm(
                f"tpu{name.removeprefix(args.name)}",
                name=name,
                data_disks=[{"source_disk": d.source, "mode": d.mode} for d in attached] or None,
                description=args.taken.get(name),
                opts=self.anew_if_taken(args, name, own),
                **same,
            )
            for name, attached in zip(args.names, disks.of_each, strict=True)
        ]
        if args.declared_in is not None:
            bodies = {
                name: {
                    **node_body(args, attached),
                    **given("schedulingConfig", same["scheduling_config"]),
                    "labels": same["labels"],
                }
                for name, attached in zip(args.names, disks.of_each, strict=True)
            }
            declare_tpus(args.declared_in, bodies, slices, self)
        self.name = slices[0].name
        self.names = pulumi.Output.all(*(one.name for one in slices)).apply(list)
        urls = _endpoints(args.grpc_port)
        self.endpoints = pulumi.Output.all(
            *(one.network_endpoints.apply(urls) for one in slices)
        ).apply(lambda workers: [url for of_one in workers for url in of_one])


class TpuNode(Tpu):
    """The classic TPU node, for projects in which Google still allows one."""

    account: pulumi.Output[str]
    """Address of Google's account as which the node reads and writes the bucket."""

    def declare(self, args: TpuArgs, opts: pulumi.ResourceOptions) -> None:
        """Declare a `gcp.tpu.Node`."""
        tpu = args.settings
        # Newer generations of the provider lack the class; check_provider refuses nodes with them.
        provider: Any = gcp.tpu
        preemptible = {"preemptible": True} if tpu.capacity is Capacity.PREEMPTIBLE else None
        labels = mark.labels(args.labels)
        node = provider.Node(
            "tpu",
            name=args.name,
            project=args.project,
            zone=args.zone,
            accelerator_type=tpu.accelerator_type,
            tensorflow_version=args.software,
            network=args.network,
            cidr_block=tpu.cidr_block,
            scheduling_config=preemptible,
            labels=labels,
            description=args.taken.get(args.name),
            opts=self.anew_if_taken(
                args, args.name, pulumi.ResourceOptions.merge(opts, _LABELS_ONCE)
            ),
        )
        if args.declared_in is not None:
            body = {
                "acceleratorType": tpu.accelerator_type,
                "tensorflowVersion": args.software,
                "network": args.network,
                "labels": labels,
                **given("cidrBlock", tpu.cidr_block),
                **given("schedulingConfig", preemptible),
            }
            declare_tpus(args.declared_in, {args.name: body}, [node], self)
        self.name = node.name
        self.names = node.name.apply(lambda name: [name])
        self.account = node.service_account
        self.endpoints = node.network_endpoints.apply(_endpoints(args.grpc_port))


def node_body(args: TpuArgs, disks: tuple[Attached, ...]) -> dict[str, Any]:
    """Return a TPU VM as the API's Node; unset fields are left out."""
    tpu = args.settings
    attached = [{"sourceDisk": disk.source, "mode": disk.mode} for disk in disks]
    boot = {"diskSizeGb": str(tpu.boot_disk_gib)} if tpu.boot_disk_gib else None
    return {
        "acceleratorType": tpu.accelerator_type,
        "runtimeVersion": args.software,
        "networkConfig": {
            "network": args.network,
            "subnetwork": args.subnetwork,
            "enableExternalIps": tpu.external_ips,
        },
        "serviceAccount": {"email": args.account, "scope": list(tpu.scopes)},
        "metadata": dict(args.metadata),
        **given("dataDisks", attached),
        **given("bootDiskConfig", boot),
        "tags": [args.tag, *tpu.tags],
        **given("shieldedInstanceConfig", {"enableSecureBoot": True} if tpu.secure_boot else None),
        **given("autocheckpointEnabled", tpu.autocheckpoint),
    }


def given(name: str, value: object) -> dict[str, Any]:
    """Return the value under its name; nothing if it is empty."""
    return {name: value} if value else {}


def _endpoints(grpc_port: int) -> Any:
    def urls(endpoints: Sequence[Any]) -> list[str]:
        return [f"grpc://{worker.ip_address}:{worker.port or grpc_port}" for worker in endpoints]

    return urls
