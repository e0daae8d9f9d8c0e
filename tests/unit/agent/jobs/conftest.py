"""A machine of the local cloud that runs a bucket's queue, as start_jobs of common.sh has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
from tpu_agent.jobs.queue import Job, Queue, Spec
from tpu_core.bucket import Bucket
from tpustack.cloud.google import Google

PROJECT, ZONE, BUCKET = projects.DEFAULT_PROJECT, "us-central1-b", "a-bucket"
NODE_NAME = f"projects/{PROJECT}/locations/{ZONE}/nodes/t"
BODY = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
EMAIL = f"machines@{PROJECT}.iam.gserviceaccount.com"
APIS = tuple(f"{api}.googleapis.com" for api in ("tpu", "compute", "iam", "logging"))
SCRIPT = """
curl --silent --header "Metadata-Flavor: Google" \\
  http://metadata.google.internal/computeMetadata/v1/instance/attributes/agent >jobs.py
systemd-run --unit=jobs --collect --property=Restart=always --property=RestartSec=0.2 \\
  --setenv=TPU_STACK_JOB_ACCOUNT=WHO --property=KillMode=process \\
  --property=StandardOutput=journal+console \\
  "$(command -v python3)" "$PWD/jobs.py" jobs
"""


class Site:
    """The cloud, its bucket and a machine."""

    def __init__(self, cloud: LocalCloud) -> None:
        self.cloud, self.client = cloud, Client(cloud)
        self.queue = Queue(Bucket(BUCKET, Google(self.client.session).exchange), print)

    def make(self) -> None:
        accounts = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
        self.client.post(accounts, {"accountId": "machines"})
        manager = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
        policy = self.client.post(f"{manager}:getIamPolicy")
        # What infra/tpu_infra/components/identity.py grants, on the project instead of the bucket.
        policy["bindings"] += [
            {"role": role, "members": [f"serviceAccount:{EMAIL}"]}
            for role in ("roles/storage.objectUser", "roles/tpu.viewer", "roles/logging.logWriter")
        ]
        self.client.post(f"{manager}:setIamPolicy", {"policy": policy})
        buckets = "storage.googleapis.com/storage/v1/b"
        self.client.post(buckets, {"name": BUCKET, "location": "US-CENTRAL1"}, project=PROJECT)
        self.tpu("READY")

    def entries(self) -> list[Any]:
        """Return the entries of all logs, the oldest first."""
        asked = {"resourceNames": [f"projects/{PROJECT}"], "orderBy": "timestamp asc"}
        return list(
            self.client.post("logging.googleapis.com/v2/entries:list", asked).get("entries", [])
        )

    def tpu(self, state: str) -> None:
        node = nodes.new(self.cloud.cloud, NODE_NAME, dict(BODY))
        ends = [{"ipAddress": "10.0.0.2", "port": 8470}]
        self.cloud.cloud.store.put(
            NODE, NODE_NAME, node | {"state": state, "networkEndpoints": ends}
        )

    def boot(self, name: str = "m", number: int = 42, log: str = "", account: str = "root") -> str:
        attributes = {"messages": json.dumps({"log": log})} if log else {}
        attributes |= {
            "agent": program(),
            "bucket-url": f"gs://{BUCKET}",
            "tpu-project": PROJECT,
            "tpu-zone": ZONE,
            "tpu-name": "t",
            "startup-script": SCRIPT.replace("WHO", account),
        }
        machine = spec(
            name=name,
            number=number,
            attributes=attributes,
            service_account=EMAIL,
            scopes=(CLOUD_PLATFORM,),
        )
        self.cloud.cloud.machines.boot(machine)
        return machine.key

    def says(self, key: str, text: str) -> None:
        until(lambda: text in self.cloud.cloud.machines.serial(key)[0])

    def job(self, name: str) -> Job:
        job = self.queue.read(name)
        assert job is not None
        return job

    def ends(self, name: str, state: str) -> Job:
        until(lambda: self.job(name).is_over)
        job = self.job(name)
        assert job.state == state, json.dumps(job.summary())
        return job


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    running = LocalCloud(tmp_path / "home")
    running.start()
    projects.enable_services(running.cloud, PROJECT, APIS)
    made = Site(running)
    made.make()
    yield made
    running.stop()


def submitted(site: Site, name: str, command: str, **more: object) -> Job:
    """A job in the queue, without an archive."""
    job = Job(name, f"id-{name}", Spec(command, **more), 1.0)  # type: ignore[arg-type]
    site.queue.add(job)
    site.queue.ring()
    return job
