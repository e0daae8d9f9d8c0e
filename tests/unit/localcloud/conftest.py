"""A local cloud on a free port with virtual time. Override `enabled_apis`, `latency` or `clock`
in a folder's or module's own fixture to change what `local_cloud` starts with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.call import Principal
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import DEVELOPER, Cloud, Latency
from localcloud.testing import Client, session as session_for
from tests.unit.localcloud.direct import DirectClient, local_cloud_at
from tests.unit.localcloud.fake_machines import FakeMachines

PROJECT = projects.DEFAULT_PROJECT


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def latency() -> Latency:
    return "none"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    """APIs to enable in the default project beside those that every project has."""
    return ()


@pytest.fixture
def local_cloud(
    tmp_path: Path, clock: VirtualClock, latency: Latency, enabled_apis: tuple[str, ...]
) -> Iterator[LocalCloud]:
    running = local_cloud_at(tmp_path / "home", clock=clock, latency=latency)
    running.start()
    projects.enable_services(running.cloud, PROJECT, enabled_apis)
    yield running
    running.stop()


@pytest.fixture
def cloud(local_cloud: LocalCloud) -> Cloud:
    return local_cloud.cloud


@pytest.fixture
def machines(local_cloud: LocalCloud) -> Iterator[FakeMachines]:
    """Machines that are only written down, without a process."""
    fake = FakeMachines()
    real = local_cloud.cloud.machines
    local_cloud.cloud.machines = fake
    yield fake
    fake.suspend_all()
    local_cloud.cloud.machines = real


@pytest.fixture
def owner(cloud: Cloud) -> str:
    """A token of the default project's owner."""
    return cloud.token(Principal(DEVELOPER), lifetime=30 * 86400)


@pytest.fixture
def session(local_cloud: LocalCloud) -> requests.Session:
    """The owner's session through the proxy."""
    return session_for(local_cloud)


@pytest.fixture
def api(local_cloud: LocalCloud) -> Client:
    """The owner's client: `api.get("compute.googleapis.com/…") -> dict`, see `Client.call`.

    It needs no connection; `Client(local_cloud)` and `session` use the port.
    """
    return DirectClient(local_cloud)
