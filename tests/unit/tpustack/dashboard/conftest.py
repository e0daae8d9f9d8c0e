"""The dashboard over a bucket of the local cloud, asked as its page asks."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.testclient import TestClient

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.testing import Client
from tpu_agent.jobs.queue import Job, Queue, Spec
from tpu_core import paths
from tpu_core.bucket import Bucket
from tpu_infra.names import names_of
from tpu_infra.settings.parse import parse
from tpustack.cloud.google import Google
from tpustack.dashboard.server import Application, Guard
from tpustack.dashboard.sources import Place
from tpustack.engine.stack import Change

BUCKET, TOKEN, PORT = "a-bucket", "the-token", 8000
ZONE = "us-central1-b"
Json = dict[str, Any]


@pytest.fixture(scope="package")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    running = LocalCloud(tmp_path_factory.mktemp("cloud") / "home")
    running.start()
    yield running
    running.stop()


@pytest.fixture(scope="package")
def client(cloud: LocalCloud) -> Client:
    return Client(cloud)


@pytest.fixture
def google(client: Client) -> Google:
    return Google(client.session)


@pytest.fixture
def queue(client: Client, google: Google) -> Iterator[Queue]:
    """A bucket with one job that runs, and one that waits."""
    buckets = "storage.googleapis.com/storage/v1/b"
    client.post(
        buckets, {"name": BUCKET, "location": "US-CENTRAL1"}, project=projects.DEFAULT_PROJECT
    )
    made = Queue(Bucket(BUCKET, google.exchange), print)
    made.add(Job("waits", "1", Spec("echo waits", env={"KEY": "secret"}), time.time() - 60))
    made.add(Job("runs", "2", Spec("python main.py"), time.time() - 90, by="ada@here"))
    made.change("runs", lambda job: job.started("42", "vm", "a-tpu", time.time() - 30))
    yield made
    for item in list(made.store.items("")):
        made.store.delete(item.path, item.generation)
    client.session.delete(f"https://{buckets}/{BUCKET}").raise_for_status()


@pytest.fixture
def place() -> Place:
    return Place(BUCKET, BUCKET)


@pytest.fixture
def page(queue: Queue, google: Google, place: Place) -> TestClient:
    """The server, as its own page reaches it."""
    app = Guard(Application([place], google).asgi, PORT, TOKEN)
    return TestClient(
        app,
        base_url=f"http://127.0.0.1:{PORT}",
        headers={"Authorization": f"Bearer {TOKEN}"},
        raise_server_exceptions=False,
    )


Write = Callable[[str, bytes], None]


@pytest.fixture
def write(queue: Queue) -> Write:
    """Writes the next piece of a job's log."""
    offsets: dict[str, int] = {}

    def piece(job: str, text: bytes) -> None:
        offset = offsets.get(job, 0)
        queue.store.write(paths.piece(job, 1, offset), text)
        offsets[job] = offset + len(text)

    return piece


def a_stack(name: str, **tpu: object) -> Place:
    config = {"gcp:project": projects.DEFAULT_PROJECT, "tpu-stack:zone": ZONE, "tpu-stack:tpu": tpu}
    settings = parse(config, name)
    return Place(name, names_of(settings, name).bucket, settings)


def engine(monkeypatch: pytest.MonkeyPatch, root: Path, *changes: Change) -> None:
    """Stands in for the engine: the stack is there, and differs from the cloud by `changes`."""
    events = SimpleNamespace(changes=list(changes), noticed=())
    done = SimpleNamespace(failure="", events=events)
    of_stack = SimpleNamespace(drift=lambda line: done, resources=list)
    backend = SimpleNamespace(root=root, stacks=lambda: {"dev": None}, stack=lambda name: of_stack)
    monkeypatch.setattr("tpustack.engine.backend.users_own", lambda: backend)


def make_tpu(client: Client, name: str, zone: str = ZONE) -> None:
    """A TPU that Google may take."""
    project = projects.DEFAULT_PROJECT
    services = f"serviceusage.googleapis.com/v1/projects/{project}/services"
    client.post(f"{services}/tpu.googleapis.com:enable", {})
    nodes = f"tpu.googleapis.com/v2/projects/{project}/locations/{zone}/nodes"
    body = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-ubuntu2204-base"}
    client.post(nodes, {**body, "schedulingConfig": {"spot": True}}, nodeId=name)


def lines(text: str) -> list[Json]:
    """The messages of a stream."""
    return [json.loads(line) for line in text.splitlines() if line]


def asset(name: str) -> str:
    folder = Path(__file__).parents[4] / "tpustack" / "dashboard" / "page"
    return (folder / name).read_text(encoding="utf-8")
