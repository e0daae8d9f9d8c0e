"""Machines that serve at once without a process, so that the API's states are tested alone."""

from __future__ import annotations

import pytest
from localcloud.app import LocalCloud
from localcloud.core.cloud import Cloud
from localcloud.machines.fake import FakeMachines
from localcloud.testing import Client


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
