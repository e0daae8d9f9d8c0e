"""The TPU as one or more TPU VMs from Google's queue."""

from __future__ import annotations

from datetime import timezone
from typing import Any

import pulumi

from infra.components.tpu import Tpu, unless_empty
from infra.names import KEPT_LABEL
from infra.queued.node import QueuedNode
from infra.queued.request import QueuedRequest, body_of
from infra.settings.machines import Capacity, QueueSettings, Workload

_HOUR = 3600
_WORKLOADS = {
    Workload.THROUGHPUT: "THROUGHPUT_OPTIMIZED",
    Workload.AVAILABILITY: "AVAILABILITY_OPTIMIZED",
}


class QueuedTpu(Tpu):
    """TPU VMs that wait in Google's queue for capacity; the update waits until all are READY.

    Several slices are one request: Google gives all of them or none.
    """

    def declare(self, opts: pulumi.ResourceOptions) -> None:
        """Declare the request and the TPU VMs that it becomes."""
        stack, queue = self.stack, self.settings.queue or QueueSettings()
        if pulumi.runtime.is_dry_run():
            pulumi.log.info(self._notice(queue), resource=self)
        disks = self.attached_disks()
        project, zone = stack.settings.project, stack.settings.zone
        where = {
            "project": project,
            "zone": zone,
            "name": stack.names.tpu,
            **unless_empty("fallbackZones", list(queue.fallback_zones)),
        }
        spec = {
            "parent": f"projects/{project}/locations/{zone}",
            **self._node_names(queue),
            # Slices of one request have the same disks: the checks let them only read.
            "node": self.body(disks[0]),
        }
        requested = {
            "request": {"tpu": {"nodeSpec": [spec]}, **self._tier(queue)},
            "queueing": _policy(queue),
            "labels": stack.marked_labels,
        }
        request = QueuedRequest(
            "tpu",
            {
                **where,
                **requested,
                **unless_empty("deleteMinutes", self.settings.timeouts.delete_minutes),
                **unless_empty("zoneMinutes", queue.minutes_in_zone),
            },
            pulumi.ResourceOptions.merge(
                opts, pulumi.ResourceOptions(depends_on=self.disks, ignore_changes=KEPT_LABEL)
            ),
        )
        nodes = QueuedNode(
            "tpu-node",
            {
                **where,
                **({"nodes": list(self.slices)} if len(self.slices) > 1 else {}),
                "requested": request.id,
                **({"at": request.at} if queue.fallback_zones else {}),
                "waitMinutes": queue.wait_minutes,
            },
            pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        body = pulumi.Output.from_input(requested).apply(body_of)
        self.declare_for_agent({stack.names.tpu: body}, [request, nodes])
        self.name = pulumi.Output.from_input(self.slices[0])
        self.names = pulumi.Output.from_input(list(self.slices))
        if queue.fallback_zones:
            self.zone = request.at
        port = stack.context.catalog.network.grpc_port
        self.endpoints = nodes.endpoints.apply(
            lambda workers: [
                f"grpc://{worker['ipAddress']}:{worker['port'] or port}" for worker in workers
            ]
        )

    def _notice(self, queue: QueueSettings) -> str:
        """Say how long an update waits, and what ends the TPU."""
        several = len(self.slices) > 1
        whose = f"its {len(self.slices)} TPU VMs" if several else "its TPU VM"
        ends = " Google deletes it when the reservation ends." if queue.reservation_bound else ""
        if queue.run_hours:
            ends = f" Google deletes it {queue.run_hours:g} hours after it was made."
        return (
            f"{self.stack.names.tpu} comes from Google's queue: an update waits for "
            f"{'them' if several else 'it'}, at most {queue.wait_minutes:g} minutes.{ends} "
            f"Replacing or destroying the request also deletes {whose}, even while it is ACTIVE "
            "and in use."
        )

    def _node_names(self, queue: QueueSettings) -> dict[str, Any]:
        name = self.stack.names.tpu
        if len(self.slices) == 1:
            return {"nodeId": name}
        workload = _WORKLOADS[queue.workload] if queue.workload else None
        several = {"nodeCount": len(self.slices), "nodeIdPrefix": name}
        return {"multiNodeParams": {**several, **unless_empty("workloadType", workload)}}

    def _tier(self, queue: QueueSettings) -> dict[str, Any]:
        """Return the tier of the queue that the request is in; empty for on demand."""
        capacity, stack = self.settings.capacity, self.stack.settings
        if capacity is Capacity.SPOT:
            return {"spot": {}}
        if capacity is Capacity.PREEMPTIBLE:
            return {"bestEffort": {}}
        if capacity is Capacity.FLEX_START:
            seconds = round((queue.run_hours or 0) * _HOUR)
            duration = {"maxRunDuration": f"{seconds}s"}
            return {"provisioningModel": "FLEX_START", "runDuration": duration}
        hours = queue.guaranteed_hours
        reserved = capacity is Capacity.RESERVED and not queue.reservation_bound
        guaranteed = {
            **unless_empty("reserved", reserved),
            **unless_empty("minDuration", f"{round(hours * _HOUR)}s" if hours else None),
        }
        name = queue.reservation
        if name and "/" not in name:
            name = f"projects/{stack.project}/locations/{stack.zone}/reservations/{name}"
        bound = "RESERVATION_BOUND" if queue.reservation_bound else None
        return {
            **unless_empty("guaranteed", guaranteed),
            **unless_empty("reservationName", name),
            **unless_empty("provisioningModel", bound),
        }


def _policy(queue: QueueSettings) -> dict[str, str]:
    if queue.valid_until is None:
        return {}
    moment = queue.valid_until.astimezone(timezone.utc)
    return {"validUntilTime": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}
