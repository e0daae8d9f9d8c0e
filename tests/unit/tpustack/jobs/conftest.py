"""`tpustack job` against a bucket of the local cloud, where no machine looks after the queue,
and a stack whose jobs Vertex AI runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.testing import Client
from tests.unit.localcloud.direct import DirectClient, local_cloud_at
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.tpustack.conftest import Done, Run
from tpu_agent.jobs.queue import Queue
from tpu_core.bucket import Bucket
from tpustack.cloud.google import Google

BUCKET = "a-bucket"
PROJECT = projects.DEFAULT_PROJECT
EMAIL = f"tpu-stack-dev-vx@{PROJECT}.iam.gserviceaccount.com"
API = "aiplatform.googleapis.com"
JOBS = f"us-central1-{API}/v1/projects/{PROJECT}/locations/us-central1/customJobs"
STACK = """config:
  gcp:project: {project}
  tpu-stack:zone: us-central1-b
  tpu-stack:bucket: {{name: {bucket}, create: false}}
  tpu-stack:jobs: {jobs}
"""
VERTEX: dict[str, object] = {"vertex": {}}


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    running = local_cloud_at(tmp_path / "home")
    running.start()
    yield running
    running.stop()


@pytest.fixture
def client(cloud: LocalCloud) -> Client:
    made = DirectClient(cloud)
    bucket = {"name": BUCKET, "location": "US-CENTRAL1"}
    made.post("storage.googleapis.com/storage/v1/b", bucket, project=projects.DEFAULT_PROJECT)
    return made


@pytest.fixture
def queue(client: Client, monkeypatch: pytest.MonkeyPatch) -> Queue:
    for module in ("queue", "vertex"):
        monkeypatch.setattr(f"tpustack.jobs.{module}.Google", lambda: Google(client.session))
    return Queue(Bucket(BUCKET, Google(client.session).exchange), print)


@pytest.fixture
def job(run: Run, queue: Queue) -> Run:
    """`tpustack job` on that bucket."""

    def command(verb: str, *arguments: str) -> Done:
        return run("job", verb, *arguments, "--bucket", f"gs://{BUCKET}")

    return command


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "main.py").write_text("print(1)\n")
    return made


def stack(project: Path, jobs: object) -> None:
    """Let the stack dev have the tests' bucket and these settings of jobs."""
    text = STACK.format(project=PROJECT, bucket=BUCKET, jobs=json.dumps(jobs))
    (project / "stacks" / "Pulumi.dev.yaml").write_text(text)


def grant(client: Client, member: str, *roles: str) -> None:
    manager = f"cloudresourcemanager.googleapis.com/v1/projects/{PROJECT}"
    policy = client.post(f"{manager}:getIamPolicy")
    policy["bindings"] += [{"role": role, "members": [member]} for role in roles]
    client.post(f"{manager}:setIamPolicy", {"policy": policy})


@pytest.fixture
def deployed(cloud: LocalCloud, client: Client, project: Path) -> Path:
    """What `pulumi up` makes of a stack with managed training."""
    projects.enable_services(cloud.cloud, PROJECT, (API, "iam.googleapis.com"))
    accounts = f"iam.googleapis.com/v1/projects/{PROJECT}/serviceAccounts"
    client.post(accounts, {"accountId": "tpu-stack-dev-vx"})
    grant(client, f"serviceAccount:{EMAIL}", "roles/storage.objectUser")
    stack(project, VERTEX)
    return project


@pytest.fixture
def machines(cloud: LocalCloud) -> FakeMachines:
    """Containers that are only written down."""
    fake = FakeMachines()
    cloud.cloud.machines = fake
    return fake
