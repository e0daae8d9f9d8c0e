from __future__ import annotations

import pytest

from localcloud.core import projects
from localcloud.core.call import Json
from localcloud.core.clock import Clock
from localcloud.testing import Client, machine

ZONE = (
    f"compute.googleapis.com/compute/beta/projects/{projects.DEFAULT_PROJECT}/zones/us-central1-b"
)


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com", "iam.googleapis.com")


@pytest.fixture
def clock() -> Clock:
    """Machines are real processes: they run in real time."""
    return Clock()


class Instances:
    """The instances of one zone."""

    def __init__(self, api: Client) -> None:
        self.api = api

    def body(self, name: str = "vm", **fields: object) -> Json:
        return machine("us-central1-b", name=name, **fields)

    def insert(self, name: str = "vm", *, status: int = 200, **fields: object) -> Json:
        return self.api.post(f"{ZONE}/instances", self.body(name, **fields), status=status)

    def get(self, name: str = "vm", *, status: int = 200) -> Json:
        return self.api.get(f"{ZONE}/instances/{name}", status=status, view="FULL")

    def delete(self, name: str = "vm", *, status: int = 200) -> Json:
        return self.api.delete(f"{ZONE}/instances/{name}", status=status)

    def post(
        self,
        method: str,
        body: Json | None = None,
        *,
        name: str = "vm",
        status: int = 200,
        **query: object,
    ) -> Json:
        url = f"{ZONE}/instances/{name}/{method}"
        return self.api.post(url, body, status=status, **query)


@pytest.fixture
def instances(api: Client) -> Instances:
    return Instances(api)
