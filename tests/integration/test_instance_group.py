"""A VM that a managed instance group keeps, on the real engine."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import requests
from rich.console import Console

from tests.patience import until
from tests.sandbox import session
from tpu_infra.deployer import CHANGE, READ, WAIT, WRITE, permissions_of
from tpustack.cloud.google import Google
from tpustack.engine.stack import Stack
from tpustack.local import LocalCloudCommand
from tpustack.logs.serial import follow

from .test_stacks import Become, settings_of

Deploy = Callable[..., Stack]
ZONE = "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local/zones/us-central1-b"
VM = "projects/tpu-stack-local/zones/us-central1-b/instances/tpu-stack-local-vm-0"
MANAGED = {
    "machineType": "n1-standard-2",
    "capacity": "spot",
    "instanceGroup": {"checkIntervalSeconds": 5},
}


def ignore(line: str) -> None:
    """The engine's output is not what these tests look at."""


def said(cloud: LocalCloudCommand, text: str) -> None:
    """Wait until the VM that there is now has written `text`."""
    until(lambda: text in cloud.run("logs", VM))


def managed(google: requests.Session) -> dict[str, Any]:
    """What the group says of its VM."""
    url = f"{ZONE}/instanceGroupManagers/tpu-stack-local-vm/listManagedInstances"
    (found,) = google.post(url).json()["managedInstances"]
    return dict(found)


def test_a_preempted_vm_comes_back_and_runs_its_job_and_nothing_is_left_of_it(
    deploy: Deploy,
    deployer: Become,
    cloud: LocalCloudCommand,
    google: requests.Session,
    trainer: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    permissions = permissions_of(settings_of("local", {"vm": MANAGED}))
    runner = deployer(permissions)
    before = cloud.status()["resources"]
    engine = deploy(vm=MANAGED)
    engine.up(ignore)
    outputs = engine.outputs()
    assert outputs["vm_name"] == "tpu-stack-local-vm-0"
    # The deployer may follow, too.
    watched = session(cloud)
    watched.headers["Authorization"] = f"Bearer {runner.token()}"
    monkeypatch.setattr("tpustack.logs.serial.Google", lambda: Google(watched))
    shown = Console(file=io.StringIO(), record=True)
    follow(shown, outputs, advice="")
    assert "training finished test_accuracy=1.0" in shown.export_text()
    until(lambda: managed(google)["instanceHealth"][0]["detailedHealthState"] == "HEALTHY")
    number = managed(google)["id"]
    cloud.run("faults", "preempt", "tpu-stack-local-vm-0")
    until(lambda: managed(google).get("id", number) != number)
    said(cloud, "the job train has finished already")
    assert engine.refresh(ignore).get("update", 0) == 0
    assert engine.up(ignore).changed == 0

    training = {"wheel": str(trainer), "tensorflowVersion": "2.19.1", "job": "second"}
    checked = {**MANAGED, "instanceGroup": {"checkIntervalSeconds": 5, "failedChecks": 5}}
    deploy(vm=checked, training=training)
    assert engine.up(ignore).changes["replace"] == 3
    said(cloud, "starting the job second")
    engine.destroy(ignore)
    assert cloud.status()["resources"] == before
    follows = {"compute.instances.get", "compute.instances.getSerialPortOutput"}
    assert follows <= set(permissions.of_project(WAIT))
    changes = {"compute.healthChecks.update"}
    assert changes <= set(permissions.of_project(CHANGE))
    assert runner.asked() == sorted({*permissions.of_project(READ, WRITE), *follows, *changes})
