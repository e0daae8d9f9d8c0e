"""The TPU as one or more TPU VMs from Google's queue."""

from __future__ import annotations

from datetime import timezone
from typing import Any

import pulumi

from infra.components.disks import Attached
from infra.components.tpu import Tpu, TpuArgs
from infra.queued.node import QueuedNode
from infra.queued.request import QueuedRequest
from infra.settings.tpu import Capacity, QueueSettings, TpuSettings, Workload

_WORKLOADS = {
    Workload.THROUGHPUT: "THROUGHPUT_OPTIMIZED",
    Workload.AVAILABILITY: "AVAILABILITY_OPTIMIZED",
}


class QueuedTpu(Tpu):
    """TPU VMs that wait in Google's queue for capacity; the update waits until all are READY.

    Several slices are one request: Google gives all of them or none.
    """

    def declare(self, args: TpuArgs, opts: pulumi.ResourceOptions) -> None:
        """Declare the request and the TPU VMs that it becomes."""
        tpu = args.settings
        queue = tpu.queued or QueueSettings()
        if pulumi.runtime.is_dry_run():
            pulumi.log.info(_said(args, queue), resource=self)
        disks = self.data_disks(args)
        where = {"project": args.project, "zone": args.zone, "name": args.name}
        spec = {
            "parent": f"projects/{args.project}/locations/{args.zone}",
            **_names(args, queue),
            # Slices of one request have the same disks: the checks let them only read.
            "node": _node(args, disks.of_each[0]),
        }
        entry = QueuedRequest(
            "tpu",
            {
                **where,
                "request": {"tpu": {"nodeSpec": [spec]}, **_tier(args, tpu, queue)},
                "queueing": _policy(queue),
                "labels": dict(args.labels),
                **_given("deleteMinutes", tpu.timeouts.delete_minutes),
            },
            pulumi.ResourceOptions.merge(opts, pulumi.ResourceOptions(depends_on=disks.made)),
        )
        several = {"nodes": list(args.names)} if len(args.names) > 1 else {}
        ready = QueuedNode(
            "tpu-node",
            {
                **where,
                **several,
                "requested": entry.created,
                "waitMinutes": queue.wait_minutes,
            },
            pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        self.name = pulumi.Output.from_input(args.names[0])
        self.names = pulumi.Output.from_input(list(args.names))
        self.endpoints = ready.endpoints.apply(
            lambda workers: [
                f"grpc://{worker['ipAddress']}:{worker['port'] or args.grpc_port}"
                for worker in workers
            ]
        )


def _said(args: TpuArgs, queue: QueueSettings) -> str:
    several = len(args.names) > 1
    whose = f"its {len(args.names)} TPU VMs" if several else "its TPU VM"
    return (
        f"{args.name} comes from Google's queue: an update waits for {'them' if several else 'it'},"
        f" at most {queue.wait_minutes:g} minutes. To replace or destroy the request deletes "
        f"{whose} with it, also while it is ACTIVE and in use."
    )


def _names(args: TpuArgs, queue: QueueSettings) -> dict[str, Any]:
    if len(args.names) == 1:
        return {"nodeId": args.name}
    workload = _WORKLOADS[queue.workload] if queue.workload else None
    several = {"nodeCount": len(args.names), "nodeIdPrefix": args.name}
    return {"multiNodeParams": {**several, **_given("workloadType", workload)}}


def _node(args: TpuArgs, disks: tuple[Attached, ...]) -> dict[str, Any]:
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
        # Unset fields are left out, so that the request equals the one an earlier release made.
        **_given("dataDisks", attached),
        **_given("bootDiskConfig", boot),
        **_given("tags", list(tpu.tags)),
        **_given("shieldedInstanceConfig", {"enableSecureBoot": True} if tpu.secure_boot else None),
        **_given("autocheckpointEnabled", tpu.autocheckpoint),
    }


def _tier(args: TpuArgs, tpu: TpuSettings, queue: QueueSettings) -> dict[str, Any]:
    """Return the tier of the queue that the request is in; empty for on demand."""
    if tpu.capacity is Capacity.SPOT:
        return {"spot": {}}
    if tpu.capacity is Capacity.PREEMPTIBLE:
        return {"bestEffort": {}}
    hours = queue.guaranteed_hours
    guaranteed = {
        **_given("reserved", tpu.capacity is Capacity.RESERVED),
        **_given("minDuration", f"{round(hours * 3600)}s" if hours else None),
    }
    name = queue.reservation
    if name and "/" not in name:
        name = f"projects/{args.project}/locations/{args.zone}/reservations/{name}"
    return {**_given("guaranteed", guaranteed), **_given("reservationName", name)}


def _policy(queue: QueueSettings) -> dict[str, str]:
    if queue.valid_until is None:
        return {}
    moment = queue.valid_until.astimezone(timezone.utc)
    return {"validUntilTime": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}


def _given(name: str, value: object) -> dict[str, Any]:
    """Return the value under its name; nothing if it is empty."""
    return {name: value} if value else {}
