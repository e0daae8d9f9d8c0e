"""gcloud, with nothing but the environment that `env` prints."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.patience import until

pytestmark = pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def gcloud(started: Run, tmp_path: Path) -> Callable[..., Any]:
    """Runs gcloud with a configuration folder of its own and gives its JSON output."""
    environment = {
        **os.environ,
        **json.loads(started("env", "--json").stdout),
        "CLOUDSDK_CONFIG": str(tmp_path / "gcloud"),
        "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
    }

    def run(*arguments: str) -> Any:
        done = subprocess.run(
            ["gcloud", *arguments, "--format=json"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


def test_gcloud_reads_the_project_enables_apis_and_grants_roles(
    gcloud: Callable[..., Any],
) -> None:
    assert gcloud("projects", "describe", "tpu-stack-local")["lifecycleState"] == "ACTIVE"
    gcloud("services", "enable", "iam.googleapis.com")
    enabled = gcloud("services", "list", "--enabled")
    assert "iam.googleapis.com" in {service["config"]["name"] for service in enabled}
    gcloud("iam", "service-accounts", "create", "trainer", "--display-name=Trainer")
    [account] = gcloud("iam", "service-accounts", "list")
    assert account["displayName"] == "Trainer"
    member = f"serviceAccount:{account['email']}"
    grant = ("--member", member, "--role", "roles/tpu.admin", "--condition=None")
    policy = gcloud("projects", "add-iam-policy-binding", "tpu-stack-local", *grant)
    assert {"role": "roles/tpu.admin", "members": [member]} in policy["bindings"]
    roles = {role["name"] for role in gcloud("iam", "roles", "list")}
    assert "roles/tpu.admin" in roles


def test_gcloud_makes_a_vm_whose_start_up_script_is_heard_on_its_serial_port(
    started: Run, gcloud: Callable[..., Any]
) -> None:
    gcloud("services", "enable", "compute.googleapis.com")
    script = "startup-script=echo hello from $HOSTNAME"
    place = ("vm", "--zone", "us-central1-b")
    [machine] = gcloud("compute", "instances", "create", *place, "--metadata", script)
    assert machine["status"] == "RUNNING"
    assert "debian-12" in machine["disks"][0]["licenses"][0]
    until(lambda: "hello from vm" in started("logs", "vm").stdout)
    assert [found["name"] for found in gcloud("compute", "instances", "list")] == ["vm"]
    # It would wait for an address that exists on paper only.
    with pytest.raises(AssertionError, match="nothing connects to a machine"):
        gcloud("compute", "ssh", *place, "--command", "uptime")
    gcloud("compute", "instances", "delete", *place)
    assert gcloud("compute", "instances", "list") == []


def test_gcloud_makes_a_machine_with_a_tpu_and_the_policy_of_a_slice(
    gcloud: Callable[..., Any],
) -> None:
    """Its stable commands lack bulk mode for groups until some release after 528."""
    gcloud("services", "enable", "compute.googleapis.com")
    compute = partial(gcloud, "compute")
    topology = ("--type=high-throughput", "--accelerator-topology=2x2x2", "--region=us-east5")
    compute("resource-policies", "create", "workload-policy", "p", *topology)
    [policy] = compute("resource-policies", "list")
    assert policy["workloadPolicy"]["acceleratorTopology"] == "2x2x2"
    image = "--image-family=ubuntu-accel-2204-amd64-tpu-v5e-v5p-v6e"
    compute(
        *("instance-templates", "create", "t", "--machine-type=ct5p-hightpu-4t", image),
        *("--image-project=ubuntu-os-accelerator-images", "--boot-disk-type=pd-balanced"),
        *("--boot-disk-size=200", "--maintenance-policy=TERMINATE"),
    )
    place = ("tpu", "--zone", "us-east5-a")
    [machine] = compute("instances", "create", *place, "--source-instance-template=t")
    assert machine["status"] == "RUNNING"
    assert machine["machineType"].endswith("/ct5p-hightpu-4t")
    compute("instances", "delete", *place)
    assert compute("instances", "list") == []
