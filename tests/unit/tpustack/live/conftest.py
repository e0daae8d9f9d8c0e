"""A local cloud in virtual time, and `tpustack check --live` against it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import Client, session
from tpu_infra import credentials
from tpu_infra.credentials import Given
from tpustack.cloud import google
from tpustack.live import QUESTIONS

from ..conftest import Run

TPU = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.16.1-pod-se"}
APIS = (
    *("tpu.googleapis.com", "compute.googleapis.com", "iam.googleapis.com"),
    *("cloudresourcemanager.googleapis.com", "orgpolicy.googleapis.com"),
)
Live = Callable[..., tuple[int, dict[str, tuple[str, str]]]]


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    made = LocalCloud(tmp_path_factory.mktemp("home"), clock=VirtualClock())
    made.start()
    projects.enable_services(made.cloud, DEFAULT_PROJECT, APIS)
    yield made
    made.stop()


@pytest.fixture
def api(cloud: LocalCloud) -> Client:
    client = Client(cloud)
    client.session.headers[credentials.QUOTA_PROJECT] = DEFAULT_PROJECT
    return client


@pytest.fixture
def live(cloud: LocalCloud, project: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Live:
    """`tpustack check --live` of a stack with some settings, all of it or some of its questions.

    Returns the exit code and what was found.
    """

    def check(
        *only: str, member: str = "", **settings: object
    ) -> tuple[int, dict[str, tuple[str, str]]]:
        asked = {about: QUESTIONS[about] for about in only or QUESTIONS}
        monkeypatch.setattr("tpustack.live.QUESTIONS", asked)
        who = session(cloud, member) if member else session(cloud)
        who.hooks = credentials.session(Given(token="unused")).hooks
        monkeypatch.setattr(google, "_transport", lambda: who)
        config: dict[str, Any] = {"zone": "us-central1-b", "tpu": TPU, **settings}
        keys = {f"tpu-stack:{name}": value for name, value in config.items()}
        path = project / "stacks" / "Pulumi.night.yaml"
        path.write_text(yaml.safe_dump({"config": {"gcp:project": DEFAULT_PROJECT, **keys}}))
        done = run("check", "--live", "--stack", "night", "--json")
        found = json.loads(done.out)["live"]
        return done.code, {one["about"]: (one["state"], one["said"]) for one in found}

    return check
