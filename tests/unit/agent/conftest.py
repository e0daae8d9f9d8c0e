"""The agent's world: the local cloud in virtual time."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import CLOUD_PLATFORM, Principal, Request
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import DEVELOPER, Latency
from localcloud.testing import Client
from tests.unit.localcloud.direct import DirectClient, local_cloud_at
from tests.unit.localcloud.fake_machines import FakeMachines
from tpu_core.google import Call, Json, parse

PROJECT, ZONE = "tpu-stack-local", "us-central1-b"
PARENT = f"projects/{PROJECT}/locations/{ZONE}"
DAY = 86400.0
TPU = f"tpu.googleapis.com/v2/{PARENT}"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def latency() -> Latency:
    return "none"


@pytest.fixture
def local_cloud(tmp_path: Path, clock: VirtualClock, latency: Latency) -> Iterator[LocalCloud]:
    running = local_cloud_at(tmp_path / "home", clock=clock, latency=latency)
    running.start()
    projects.enable_services(running.cloud, PROJECT, ("tpu.googleapis.com",))
    running.cloud.machines = machines = FakeMachines()
    yield running
    machines.suspend_all()
    running.stop()


@pytest.fixture
def google(local_cloud: LocalCloud) -> Client:
    client = DirectClient(local_cloud)
    uniform = {"uniformBucketLevelAccess": {"enabled": True}}
    bucket = {"name": "a-bucket", "location": "US-CENTRAL1", "iamConfiguration": uniform}
    client.post("storage.googleapis.com/storage/v1/b", bucket, project=PROJECT)
    return client


def caller(cloud: LocalCloud) -> Call:
    """Calls Google as the machine does, without a connection: days have thousands of calls."""
    token = cloud.cloud.token(Principal(DEVELOPER, frozenset({CLOUD_PLATFORM})), lifetime=30 * DAY)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def call(method: str, url: str, body: str | None) -> tuple[int, Json]:
        at, raw = urlsplit(url), (body or "").encode()
        query = parse_qs(at.query, keep_blank_values=True)
        answer = cloud.dispatcher.answer(
            Request(method, at.netloc, at.path, query, headers, io.BytesIO(raw), len(raw))
        )
        content = answer.body if isinstance(answer.body, bytes) else b"".join(answer.body)
        return answer.status, parse(content)

    return call


class Killed(BaseException):
    """The agent's process is gone."""


def deadly(call: Call, chance: random.Random, share: float) -> Call:
    """Kill the agent by chance, before or after a call has reached Google."""

    def deadly_call(method: str, url: str, body: str | None) -> tuple[int, Json]:
        if chance.random() < share:
            raise Killed
        answer = call(method, url, body)
        if chance.random() < share:
            raise Killed
        return answer

    return deadly_call


def state(google: Client, name: str = "t") -> str:
    nodes = google.get(f"{TPU}/nodes").get("nodes", [])
    return next((node["state"] for node in nodes if node["name"].endswith(f"/{name}")), "gone")
