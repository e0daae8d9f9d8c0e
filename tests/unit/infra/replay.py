"""What the provider would ask of Google for some settings, asked of the local cloud."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from infra.checks.context import Context
from infra.checks.network import subnet_range
from infra.components.vm import scheduling as vm_scheduling
from infra.settings import StackSettings
from infra.settings.tpu import Architecture, Capacity
from localcloud.app import LocalCloud
from localcloud.core import enablement
from localcloud.core.call import Request
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import DEVELOPER
from localcloud.core.store import Record
from localcloud.core.tokens import Principal

Json = dict[str, Any]
Call = tuple[str, str, dict[str, str], Json]
"""(host, path, query, body) of a POST."""

_APIS = ("tpu", "compute", "storage", "iam", "cloudresourcemanager")
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"


def calls(settings: StackSettings, context: Context) -> Iterator[Call]:
    """The creations that a stack begins with, as far as Google judges the settings by them."""
    own = {"managed-by": "pulumi", "tpu-stack": "test", "goog-pulumi-provisioned": "true"}
    names, labels = context.names, {**own, **settings.labels}
    project, region, zone = settings.project, settings.region, settings.zone
    if settings.bucket.create:
        bucket: Json = {"name": names.bucket, "location": region.upper(), "labels": labels}
        if settings.bucket.soft_delete_days is not None:
            seconds = str(settings.bucket.soft_delete_days * 86400)
            bucket["softDeletePolicy"] = {"retentionDurationSeconds": seconds}
        yield "storage.googleapis.com", "/storage/v1/b", {"project": project}, bucket
    account = {"accountId": names.account, "serviceAccount": {}}
    yield "iam.googleapis.com", f"/v1/projects/{project}/serviceAccounts", {}, account
    email = f"{names.account}@{project}.iam.gserviceaccount.com"
    compute, place = f"/compute/beta/projects/{project}", f"projects/{project}/zones/{zone}"
    network, subnetwork = (
        f"projects/{project}/global/networks/default",
        f"projects/{project}/regions/{region}/subnetworks/default",
    )
    if settings.network.create:
        network = f"projects/{project}/global/networks/{names.network}"
        subnetwork = f"projects/{project}/regions/{region}/subnetworks/{names.network}"
        asked = settings.network.subnet_range or str(subnet_range(settings, context))
        body: Json = {"name": names.network, "autoCreateSubnetworks": False}
        yield "compute.googleapis.com", f"{compute}/global/networks", {}, body
        body = {"name": names.network, "network": network, "ipCidrRange": asked}
        yield "compute.googleapis.com", f"{compute}/regions/{region}/subnetworks", {}, body
    yield _tpu(settings, context, labels, email, network, subnetwork)
    yield (
        "compute.googleapis.com",
        f"{compute}/zones/{zone}/instances",
        {},
        {
            "name": names.vm,
            "machineType": f"{place}/machineTypes/{settings.vm.machine_type}",
            "disks": [
                {
                    "boot": True,
                    "autoDelete": True,
                    "initializeParams": {
                        "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
                        "diskSizeGb": str(settings.vm.boot_disk_gib),
                        "diskType": f"{place}/diskTypes/{settings.vm.boot_disk_type.value}",
                    },
                }
            ],
            "networkInterfaces": [{"network": network, "subnetwork": subnetwork}],
            "scheduling": _camel(vm_scheduling(settings.vm)),
            "shieldedInstanceConfig": {
                "enableSecureBoot": settings.vm.shielded.secure_boot,
                "enableVtpm": settings.vm.shielded.vtpm,
                "enableIntegrityMonitoring": settings.vm.shielded.integrity_monitoring,
            },
            "serviceAccounts": [{"email": email, "scopes": [_SCOPE]}],
            "labels": labels,
        },
    )


def _tpu(
    settings: StackSettings,
    context: Context,
    labels: Json,
    email: str,
    network: str,
    subnetwork: str,
) -> Call:
    tpu = settings.tpu
    place = f"projects/{settings.project}/locations/{settings.zone}"
    name = context.names.tpus(tpu.slices)[-1]
    tier = {
        Capacity.ON_DEMAND: {},
        Capacity.SPOT: {"spot": True},
        Capacity.PREEMPTIBLE: {"preemptible": True},
        Capacity.RESERVED: {"reserved": True},
    }[tpu.capacity]
    node: Json = {"acceleratorType": tpu.accelerator_type, "labels": labels}
    if settings.architecture is Architecture.NODE:
        node |= {"network": network, "schedulingConfig": tier}
        node |= {"tensorflowVersion": tpu.tensorflow_version, "cidrBlock": tpu.cidr_block or ""}
        return "tpu.googleapis.com", f"/v1/{place}/nodes", {"nodeId": name}, node
    node |= {
        "runtimeVersion": tpu.runtime_version,
        "networkConfig": {"network": network, "subnetwork": subnetwork},
        "serviceAccount": {"email": email, "scope": list(tpu.scopes)},
        "tags": list(tpu.tags),
    }
    if tpu.queued is None:
        node["schedulingConfig"] = tier
        return "tpu.googleapis.com", f"/v2alpha1/{place}/nodes", {"nodeId": name}, node
    several = {"nodeCount": tpu.slices, "nodeIdPrefix": context.names.tpu}
    which: Json = {"multiNodeParams": several} if tpu.slices > 1 else {"nodeId": name}
    spec = {"parent": place, "node": node, **which}
    request: Json = {"tpu": {"nodeSpec": [spec]}}
    query = {"queuedResourceId": context.names.tpu}
    return "tpu.googleapis.com", f"/v2alpha1/{place}/queuedResources", query, request


class Google:
    """The local cloud without its port: each stack finds it as the one before found it."""

    def __init__(self, home: Path) -> None:
        # Time stands still, so that machines are asked for and never come: asking is what counts.
        self._local = LocalCloud(home, clock=VirtualClock(), latency="real")
        self._local.start()
        self._cloud = self._local.cloud
        enablement.enable(
            self._cloud, "tpu-stack-local", tuple(f"{api}.googleapis.com" for api in _APIS)
        )
        self._local.cloud.clock.advance(3600)  # type: ignore[attr-defined]
        token = self._cloud.token(Principal(DEVELOPER, frozenset({_SCOPE})), lifetime=1e9)
        self._headers = {"Authorization": f"Bearer {token}"}

    def refuses(self, wanted: Iterator[Call]) -> str:
        """What Google says to the first call that it refuses; empty when it takes all."""
        undo = self._journal()
        try:
            for host, path, query, body in wanted:
                self._cloud.latency_profile = "real" if _is_machine(path) else "none"
                raw = json.dumps(body).encode()
                many = {key: [value] for key, value in query.items()}
                answer = self._local.dispatcher.answer(
                    Request("POST", host, path, many, self._headers, io.BytesIO(raw), len(raw))
                )
                if answer.status != 200:
                    assert isinstance(answer.body, bytes)
                    said = json.loads(answer.body)["error"]
                    assert said["code"] < 500, said
                    return f"{path}: {said['message']}"
            return ""
        finally:
            undo()

    def stop(self) -> None:
        self._local.stop()

    def _journal(self) -> Any:
        """Note what is about to change; the result takes it back."""
        store, before = self._cloud.store, dict[tuple[str, str], "Record | None"]()
        put, delete = type(store).put, type(store).delete

        def noting_put(kind: str, key: str, record: Record) -> None:
            before.setdefault((kind, key), store.get(kind, key))
            put(store, kind, key, record)

        def noting_delete(kind: str, key: str) -> bool:
            before.setdefault((kind, key), store.get(kind, key))
            return delete(store, kind, key)

        store.put, store.delete = noting_put, noting_delete  # type: ignore[method-assign]

        def undo() -> None:
            del store.put, store.delete
            for (kind, key), record in before.items():
                if record is None:
                    store.delete(kind, key)
                else:
                    store.put(kind, key, record)

        return undo


def _is_machine(path: str) -> bool:
    return path.endswith(("/nodes", "/queuedResources", "/instances"))


def _camel(snake: Json) -> Json:
    def name(key: str) -> str:
        head, *tail = key.split("_")
        return head + "".join(part.capitalize() for part in tail)

    return {name(key): value for key, value in snake.items()}
