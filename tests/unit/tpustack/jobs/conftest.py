"""`tpustack job` against a bucket of the local cloud, where no machine looks after the queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.startup.agent.jobs.queue import Queue
from infra.startup.agent.jobs.store import Store
from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.testing import Client
from tests.unit.tpustack.conftest import Done, Run
from tpustack.cloud.google import Google

BUCKET = "a-bucket"


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path / "home")
    running.start()
    yield running
    running.stop()


@pytest.fixture
def client(cloud: LocalCloud) -> Client:
    made = Client(cloud)
    bucket = {"name": BUCKET, "location": "US-CENTRAL1"}
    made.post("storage.googleapis.com/storage/v1/b", bucket, project=projects.DEFAULT_PROJECT)
    return made


@pytest.fixture
def queue(client: Client, monkeypatch: pytest.MonkeyPatch) -> Queue:
    monkeypatch.setattr("tpustack.jobs.place.Google", lambda: Google(client.session))
    return Queue(Store(BUCKET, Google(client.session).exchange), print)


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
