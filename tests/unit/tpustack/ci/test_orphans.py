"""What requests' stacks leave at Google is found by its labels, and nothing else is touched."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from localcloud.app import LocalCloud
from localcloud.core import enablement
from localcloud.core.clock import VirtualClock
from localcloud.testing import Client, machine
from tests.unit.localcloud.fake_machines import FakeMachines
from tpustack.ci.job import Job
from tpustack.ci.outcome import Outcome
from tpustack.ci.sweep import sweep_orphans
from tpustack.cloud.google import Google

PROJECT, ZONE = "tpu-stack-local", "us-central1-b"
COMPUTE = f"compute.googleapis.com/compute/v1/projects/{PROJECT}/zones/{ZONE}"
STORAGE = "storage.googleapis.com/storage/v1/b"
TPU = f"tpu.googleapis.com/v2alpha1/projects/{PROJECT}/locations/{ZONE}"
NODE = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.17.0-pod-pjrt"}
TPU_API = "tpu.googleapis.com"
KINDS = ("TPU request", "TPU", "VM", "disk", "bucket")


def labels(stack: str) -> dict[str, str]:
    return {"managed-by": "pulumi", "tpu-stack": stack, "request": stack}


STAY = (
    labels("pr-8"),  # It has a state.
    labels("dev"),
    labels("pr-7x"),
    labels("pr-7") | {"managed-by": "somebody"},
    labels("pr-7") | {"request": "pr-9"},
)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Client]:
    cloud = LocalCloud(tmp_path / "home", clock=VirtualClock())
    cloud.start()
    enablement.enable(cloud.cloud, PROJECT, [TPU_API])
    cloud.cloud.machines = fake = FakeMachines()
    yield Client(cloud)
    fake.suspend_all()
    cloud.stop()


def make(api: Client, name: str, own: dict[str, str]) -> None:
    """One resource of each kind with these labels."""
    parent = TPU.partition("v2alpha1/")[2]
    node = NODE | {"labels": own}
    spec = {"parent": parent, "nodeId": f"{name}-queued", "node": node}
    api.post(f"{TPU}/queuedResources", {"tpu": {"nodeSpec": [spec]}}, queuedResourceId=name)
    api.post(f"{TPU}/nodes", node, nodeId=name)
    api.post(f"{COMPUTE}/instances", machine(ZONE, name=name, labels=own))
    api.post(f"{COMPUTE}/disks", {"name": f"{name}-disk", "sizeGb": "10", "labels": own})
    api.post(STORAGE, {"name": name, "location": "US-CENTRAL1", "labels": own}, project=PROJECT)
    upload = f"https://storage.googleapis.com/upload/storage/v1/b/{name}/o"
    named = {"uploadType": "media", "name": "a folder/an object?"}
    assert api.session.post(upload, params=named, data=b"x", timeout=30).ok


def there(api: Client) -> set[str]:
    lists = {
        f"{TPU}/queuedResources": "queuedResources",
        f"{TPU}/nodes": "nodes",
        f"{COMPUTE}/instances": "items",
        f"{COMPUTE}/disks": "items",
    }
    found = {each["name"] for url, items in lists.items() for each in api.get(url).get(items, [])}
    return found | {each["name"] for each in api.get(STORAGE, project=PROJECT).get("items", [])}


def sweep(api: Client, *known: str, remove: bool) -> list[Any]:
    backend = SimpleNamespace(stacks=lambda: dict.fromkeys(known))
    job = cast(Job, SimpleNamespace(backend=backend))
    return sweep_orphans(job, Google(api.session), PROJECT, remove=remove)


def test_what_no_state_knows_of_is_named_and_deleted_only_when_asked_to(api: Client) -> None:
    for number, own in enumerate(STAY):
        make(api, f"stays-{number}", own)
    others = there(api)
    make(api, "orphan", labels("pr-7"))
    everything = there(api)
    (named,) = sweep(api, "dev", "pr-8", remove=False)
    assert (named.stack, named.outcome) == ("pr-7", Outcome.NO_CHANGE)
    assert all(f"{kind} orphan" in named.notes[0] for kind in KINDS)
    assert there(api) == everything
    (removed,) = sweep(api, "dev", "pr-8", remove=True)
    assert removed.outcome is Outcome.CHANGES
    assert there(api) == others
    assert sweep(api, "dev", "pr-8", remove=True) == []


def test_where_an_api_is_disabled_there_is_nothing_of_it(api: Client) -> None:
    api.post(f"serviceusage.googleapis.com/v1/projects/{PROJECT}/services/{TPU_API}:disable", {})
    disk = {"name": "orphan", "sizeGb": "10", "labels": labels("pr-7")}
    api.post(f"{COMPUTE}/disks", disk)
    (named,) = sweep(api, "dev", remove=False)
    assert "disk orphan" in named.notes[0]
