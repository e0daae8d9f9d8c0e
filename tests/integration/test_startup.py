"""The VM's start-up script on machines of the local cloud that no stack has made."""

from __future__ import annotations

import io
from typing import Any

import pytest
import requests
from rich.console import Console

from localcloud.testing import Session, machine
from tests.patience import until
from tpu_agent.bundle import program, startup_script
from tpustack.cloud.google import Google
from tpustack.errors import TpustackError
from tpustack.local import LocalCloudCommand
from tpustack.logs.serial import follow

PROJECT = "https://compute.googleapis.com/compute/v1/projects/tpu-stack-local"
GROUPS = f"{PROJECT}/zones/us-central1-b/instanceGroupManagers"
HEALTH = {"type": "HTTP", "checkIntervalSec": 1, "timeoutSec": 1, "httpHealthCheck": {"port": 8090}}


@pytest.fixture
def compute(cloud: LocalCloudCommand, google: Session) -> Session:
    services = "https://serviceusage.googleapis.com/v1/projects/tpu-stack-local/services"
    google.post(f"{services}/compute.googleapis.com:enable", json={}).raise_for_status()
    return google


def script_that(does: str) -> str:
    """The VM's script, with something else in place of the training."""
    own, separator, rest = startup_script("vm.sh").rpartition("start_training ")
    return f"{own}start_training() {{ {does}; }}\n{separator}{rest}"


def keep(compute: requests.Session, name: str, script: str, delay: int, **more: str) -> None:
    """A group of one VM with that script, and a check of its health after a `delay` in seconds."""
    items = {"startup-script": script, "health-port": "8090", **more}
    metadata = {"items": [{"key": key, "value": text} for key, text in items.items()]}
    template = {"name": name, "properties": machine(metadata=metadata)}
    compute.post(f"{PROJECT}/global/instanceTemplates", json=template).raise_for_status()
    check = {"name": name, **HEALTH}
    compute.post(f"{PROJECT}/global/healthChecks", json=check).raise_for_status()
    group = {
        "name": name,
        "baseInstanceName": name,
        "instanceTemplate": f"global/instanceTemplates/{name}",
        "autoHealingPolicies": [
            {"healthCheck": f"global/healthChecks/{name}", "initialDelaySec": delay}
        ],
        "targetSize": 1,
    }
    compute.post(GROUPS, json=group).raise_for_status()


def boot(compute: requests.Session, name: str, script: str, **more: str) -> dict[str, str]:
    """A VM on its own with that script, as a stack's outputs name it."""
    items = {"startup-script": script, **more}
    metadata = {"items": [{"key": key, "value": text} for key, text in items.items()]}
    body = machine("us-central1-b", name=name, metadata=metadata)
    url = f"{PROJECT}/zones/us-central1-b/instances"
    compute.post(url, json=body).raise_for_status()
    return {"project": "tpu-stack-local", "vm_zone": "us-central1-b", "vm_name": name}


def managed(compute: requests.Session, name: str) -> dict[str, Any]:
    (found,) = compute.post(f"{GROUPS}/{name}/listManagedInstances").json()["managedInstances"]
    return dict(found)


def health(compute: requests.Session, name: str) -> str:
    return str(managed(compute, name)["instanceHealth"][0]["detailedHealthState"])


def test_a_vm_whose_script_fails_is_recreated_and_one_whose_script_works_is_left_alone(
    compute: requests.Session, cloud: LocalCloudCommand
) -> None:
    # A VM that starts slowly, next to other tests, has not failed.
    keep(compute, "works", script_that("log training"), 600, **{"ops-agent": "true"})
    keep(compute, "fails", script_that("exit 1"), 0)
    works, fails = (managed(compute, name)["id"] for name in ("works", "fails"))
    until(lambda: managed(compute, "fails").get("id", fails) != fails)
    until(lambda: health(compute, "works") == "HEALTHY")
    assert managed(compute, "works")["id"] == works
    written = cloud.run("logs", managed(compute, "works")["name"])
    assert "tpu-stack: training" in written
    # A local machine has no apt: what the agent needs is missing, and the training does not mind.
    assert "tpu-stack: no Ops Agent: this image has no apt-get" in written


# What the agent asks for.
AGENTS = {
    "agent": program(),
    "bucket-url": "gs://no-bucket",
    "tpu-project": "tpu-stack-local",
    "tpu-zone": "us-central1-b",
    "tpu-name": "no-tpu",
    "training-job": "a",
}
# Fails in a way that passes; is started again, and stops for good.
FAILS_TWICE = r"""
start_agent
order_training no-mark "PYTHONUNBUFFERED=1" -- /bin/bash -c '
    [[ -e '"$BASE"'/tried ]] && { echo "training failed: no such option"; exit 2; }
    echo "told: $TPU_TRAINING_COST_NOTE"
    touch '"$BASE"'/tried; echo "training failed: the worker is lost"; exit 1'
"""


def test_following_ends_when_the_trainer_is_not_started_again_or_the_script_fails(
    compute: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpustack.logs.serial.Google", lambda: Google(compute))
    shown = Console(file=io.StringIO(), record=True)
    note = {"cost-note": "It costs $1 until `pulumi destroy`."}
    stops = boot(compute, "stops", script_that(FAILS_TWICE.strip()), **note, **AGENTS)
    fails = boot(compute, "fails", script_that("log there is no such bucket; exit 3"))
    with pytest.raises(TpustackError) as raised:
        follow(shown, stops, advice="Look there")
    assert str(raised.value) == "the training on stops failed: no such option. Look there"
    assert "told: It costs $1 until `pulumi destroy`." in shown.export_text()
    with pytest.raises(TpustackError) as raised:
        follow(shown, fails, advice="Look there")
    assert str(raised.value) == (
        "the training on fails failed: the start-up script failed: tpu-stack: there is no such "
        "bucket (exit status 3). Look there"
    )
    # The first boot's failure is not the second's.
    url = f"{PROJECT}/zones/us-central1-b/instances/fails"
    done = "log the job a has finished already"
    items = [{"key": "startup-script", "value": script_that(done)}]
    fingerprint = compute.get(url).json()["metadata"]["fingerprint"]
    compute.post(
        f"{url}/setMetadata", json={"items": items, "fingerprint": fingerprint}
    ).raise_for_status()
    compute.post(f"{url}/reset").raise_for_status()
    until(lambda: compute.get(f"{url}/serialPort").json()["contents"].count("UEFI: ") == 2)
    follow(shown, fails, advice="Look there")
