"""The agent as a process on a machine that really runs: its metadata, its token, its main loop."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import CLOUD_PLATFORM
from localcloud.services.tpu import nodes
from localcloud.services.tpu.api import NODE
from localcloud.testing import Client
from tests.patience import until
from tests.unit.localcloud.machines.conftest import spec
from tpu_agent.bundle import program

pytestmark = pytest.mark.server

PROJECT = projects.DEFAULT_PROJECT
ZONE = "us-central1-b"
NAME = f"projects/{PROJECT}/locations/{ZONE}/nodes/t"
EMAIL = f"machines@{PROJECT}.iam.gserviceaccount.com"
BODY = {
    "acceleratorType": "v2-8",
    "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt",
    "labels": {"tpu-stack-mark": "abc"},
}
# As start_agent of common.sh does it.
SCRIPT = """
curl --silent --header "Metadata-Flavor: Google" \\
  http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent >agent.py
python3 agent.py &
"""


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path / "home")
    running.start()
    apis = ("tpu.googleapis.com", "compute.googleapis.com", "iam.googleapis.com")
    projects.enable_services(running.cloud, PROJECT, apis)
    yield running
    running.stop()


def test_it_takes_a_lost_tpu_down_and_asks_for_another(cloud: LocalCloud) -> None:
    """There is none: nothing has to boot here to see that it asked."""
    google = Client(cloud)
    google.post(
        f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts", {"accountId": "machines"}
    )
    manager = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = google.post(f"{manager}:getIamPolicy")
    policy["bindings"] += [{"role": "roles/owner", "members": [f"serviceAccount:{EMAIL}"]}]
    google.post(f"{manager}:setIamPolicy", {"policy": policy})
    buckets = "storage.googleapis.com/storage/v1/b"
    google.post(buckets, {"name": "a-bucket", "location": "US-CENTRAL1"}, project=PROJECT)
    url = f"https://storage.googleapis.com/upload/{buckets.partition('/')[2]}/a-bucket/o"
    google.session.post(
        url,
        params={"uploadType": "media", "name": "agent/declaration.json"},
        data=json.dumps({"tpus": {"t": BODY}}),
        timeout=30,
    ).raise_for_status()
    lost = nodes.new(cloud.cloud, NAME, dict(BODY)) | {"state": "PREEMPTED"}
    cloud.cloud.store.put("setting", "stockout", {ZONE: ["*"]})
    cloud.cloud.store.put(NODE, NAME, lost)
    attributes = {
        "agent": program(),
        "limits": json.dumps({"tpus": ["t"], "recovery": {"preemption": 9, "failure": 9}}),
        "bucket-url": "gs://a-bucket",
        "tpu-name": "t",
        "tpu-project": PROJECT,
        "tpu-zone": ZONE,
        "training-job": "a-job",
        "startup-script": SCRIPT,
    }
    machine = spec(attributes=attributes, service_account=EMAIL, scopes=(CLOUD_PLATFORM,))
    cloud.cloud.machines.boot(machine)

    def said() -> str:
        return cloud.cloud.machines.serial(machine.key)[0]

    until(lambda: "t is deleted and recreated: it is PREEMPTED" in said())
    until(lambda: "t is not created yet: stock-out (There is no more capacity" in said())
