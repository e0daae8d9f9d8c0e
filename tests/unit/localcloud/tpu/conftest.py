"""Machines that serve at once without a process, so that the API's states are tested alone."""

from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core.cloud import Cloud
from localcloud.testing import Client
from tests.unit.localcloud.fake_machines import FakeMachines


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("tpu.googleapis.com",)


@pytest.fixture
def cloud(local_cloud: LocalCloud, machines: FakeMachines) -> Cloud:
    return local_cloud.cloud


@pytest.fixture
def tpu(api: Client, machines: FakeMachines) -> Client:
    """The owner's client of a cloud with fake machines."""
    return api
