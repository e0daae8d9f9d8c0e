"""The TPU as one or more TPU VMs from Google's queue."""

from __future__ import annotations

from datetime import timezone
from typing import Any

import pulumi

from infra.components import mark
from infra.components.declaration import declare_tpus
from infra.components.tpu import Tpu, TpuArgs, given, node_body
from infra.queued.node import QueuedNode
from infra.queued.request import QueuedRequest
from infra.queued.walk import body_of
from infra.settings.tpu import Capacity, QueueSettings, TpuSettings, Workload

_HOUR = 3600
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
        queue = tpu.queue or QueueSettings()
        if pulumi.runtime.is_dry_run():
            pulumi.log.info(_said(args, queue), resource=self)
        disks = self.data_disks(args)
        where = {
            "project": args.project,
            "zone": args.zone,
            "name": args.name,
            **given("fallbackZones", list(queue.fallback_zones)),
        }
        spec = {
            "parent": f"projects/{args.project}/locations/{args.zone}",
            **_names(args, queue),
            # Slices of one request have the same disks: the checks let them only read.
            "node": node_body(args, disks.of_each[0]),
        }
        asked = {
            "request": {"tpu": {"nodeSpec": [spec]}, **_tier(args, tpu, queue)},
            "queueing": _policy(queue),
            "labels": mark.labels(args.labels),
        }
        entry = QueuedRequest(
            "tpu",
            {
                **where,
                **asked,
                **given("deleteMinutes", tpu.timeouts.delete_minutes),
                **given("zoneMinutes", queue.minutes_in_zone),
            },
            pulumi.ResourceOptions.merge(
                opts,
                pulumi.ResourceOptions(depends_on=disks.made, ignore_changes=mark.KEPT_LABEL),
            ),
        )
        several = {"nodes": list(args.names)} if len(args.names) > 1 else {}
        ready = QueuedNode(
            "tpu-node",
            {
                **where,
                **several,
                "requested": entry.id,
                **({"at": entry.at} if queue.fallback_zones else {}),
                "waitMinutes": queue.wait_minutes,
            },
            pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        if args.declared_in is not None:
            body = pulumi.Output.from_input(asked).apply(body_of)
            declare_tpus(args.declared_in, {args.name: body}, [entry, ready], self)
        self.name = pulumi.Output.from_input(args.names[0])
        self.names = pulumi.Output.from_input(list(args.names))
        if queue.fallback_zones:
            self.zone = entry.at
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
        f" at most {queue.wait_minutes:g} minutes.{_ends(queue)} Replacing or destroying the "
        f"request also deletes {whose}, even while it is ACTIVE and in use."
    )


def _ends(queue: QueueSettings) -> str:
    """Say when Google deletes the TPU by itself, if it does."""
    if queue.run_hours:
        return f" Google deletes it {queue.run_hours:g} hours after it was made."
    return " Google deletes it when the reservation ends." if queue.reservation_bound else ""


def _names(args: TpuArgs, queue: QueueSettings) -> dict[str, Any]:
    if len(args.names) == 1:
        return {"nodeId": args.name}
    workload = _WORKLOADS[queue.workload] if queue.workload else None
    several = {"nodeCount": len(args.names), "nodeIdPrefix": args.name}
    return {"multiNodeParams": {**several, **given("workloadType", workload)}}


def _tier(args: TpuArgs, tpu: TpuSettings, queue: QueueSettings) -> dict[str, Any]:
    """Return the tier of the queue that the request is in; empty for on demand."""
    if tpu.capacity is Capacity.SPOT:
        return {"spot": {}}
    if tpu.capacity is Capacity.PREEMPTIBLE:
        return {"bestEffort": {}}
    if tpu.capacity is Capacity.FLEX_START:
        seconds = round((queue.run_hours or 0) * _HOUR)
        return {
            "provisioningModel": "FLEX_START",
            "runDuration": {"maxRunDuration": f"{seconds}s"},
        }
    hours = queue.guaranteed_hours
    guaranteed = {
        **given("reserved", tpu.capacity is Capacity.RESERVED and not queue.reservation_bound),
        **given("minDuration", f"{round(hours * _HOUR)}s" if hours else None),
    }
    name = queue.reservation
    if name and "/" not in name:
        name = f"projects/{args.project}/locations/{args.zone}/reservations/{name}"
    bound = "RESERVATION_BOUND" if queue.reservation_bound else None
    return {
        **given("guaranteed", guaranteed),
        **given("reservationName", name),
        **given("provisioningModel", bound),
    }


def _policy(queue: QueueSettings) -> dict[str, str]:
    if queue.valid_until is None:
        return {}
    moment = queue.valid_until.astimezone(timezone.utc)
    return {"validUntilTime": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}
