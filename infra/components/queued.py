"""The TPU as a TPU VM out of Google's queue."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timezone
from typing import Any

import pulumi

from infra.components.machine import CLOUD_PLATFORM
from infra.components.tpu import Tpu, TpuArgs, required
from infra.queued.entry import QueueEntry
from infra.queued.node import QueuedNode
from infra.settings.tpu import Capacity, QueueSettings

# Which part of the queue a request is in; none of them is on demand.
_TIERS: Mapping[Capacity, dict[str, Any]] = {
    Capacity.ON_DEMAND: {},
    Capacity.SPOT: {"spot": {}},
    Capacity.PREEMPTIBLE: {"bestEffort": {}},
    Capacity.RESERVED: {"guaranteed": {"reserved": True}},
}


class QueuedTpu(Tpu):
    """A TPU VM that waits in Google's queue for capacity; the update waits until it is READY."""

    def declare(self, args: TpuArgs, opts: pulumi.ResourceOptions) -> None:
        """Declares the request and the TPU VM that it becomes."""
        tpu = args.settings
        queue = tpu.queued or QueueSettings()
        if pulumi.runtime.is_dry_run():
            pulumi.log.info(
                f"{args.name} comes from Google's queue: an update waits for it, at most "
                f"{queue.wait_minutes:g} minutes. To replace or destroy the request deletes its "
                "TPU VM with it, also while it is ACTIVE and in use.",
                resource=self,
            )
        where = {"project": args.project, "zone": args.zone, "name": args.name}
        node = {
            "acceleratorType": tpu.accelerator_type,
            "runtimeVersion": required(tpu.runtime_version),
            "networkConfig": {
                "network": args.network,
                "subnetwork": args.subnetwork,
                "enableExternalIps": False,
            },
            "serviceAccount": {"email": args.account, "scope": [CLOUD_PLATFORM]},
            "metadata": dict(args.metadata),
        }
        spec = {
            "parent": f"projects/{args.project}/locations/{args.zone}",
            "nodeId": args.name,
            "node": node,
        }
        entry = QueueEntry(
            "tpu",
            {
                **where,
                "request": {"tpu": {"nodeSpec": [spec]}, **_TIERS[tpu.capacity]},
                "queueing": _policy(queue),
                "labels": dict(args.labels),
            },
            opts,
        )
        ready = QueuedNode(
            "tpu-node",
            {**where, "requested": entry.created, "waitMinutes": queue.wait_minutes},
            pulumi.ResourceOptions(parent=self, delete_before_replace=True),
        )
        self.name = pulumi.Output.from_input(args.name)
        self.endpoints = ready.endpoints.apply(
            lambda workers: [
                f"grpc://{worker['ipAddress']}:{worker['port'] or args.grpc_port}"
                for worker in workers
            ]
        )


def _policy(queue: QueueSettings) -> dict[str, str]:
    if queue.valid_until is None:
        return {}
    moment = queue.valid_until.astimezone(timezone.utc)
    return {"validUntilTime": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}
