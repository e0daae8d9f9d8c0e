"""A group as a test sees it: with machines that are only written down, in virtual time."""

from __future__ import annotations

import http.server
from collections.abc import Iterator

import pytest

from localcloud.core import projects
from localcloud.core.call import Json
from localcloud.testing import Client, machine
from tests.serving import in_thread
from tests.unit.localcloud.fake_machines import FakeMachines

PROJECT = f"compute.googleapis.com/compute/beta/projects/{projects.DEFAULT_PROJECT}"
ZONE = f"{PROJECT}/zones/us-central1-b"
MANAGERS = f"{ZONE}/instanceGroupManagers"
KEY = f"projects/{projects.DEFAULT_PROJECT}/zones/us-central1-b/instances/"


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("compute.googleapis.com",)


class Groups:
    """The groups of one zone."""

    def __init__(self, api: Client) -> None:
        self.api = api

    def template(self, name: str = "t", *, status: int = 200, **properties: object) -> Json:
        sent = {"name": name, "properties": machine() | properties}
        return self.api.post(f"{PROJECT}/global/instanceTemplates", sent, status=status)

    def body(self, **fields: object) -> Json:
        template = "global/instanceTemplates/t"
        return {"name": "g", "baseInstanceName": "g", "instanceTemplate": template} | fields

    def insert(self, *, status: int = 200, **fields: object) -> Json:
        return self.api.post(MANAGERS, self.body(**fields), status=status)

    def create(self, *names: str, status: int = 200, **config: object) -> Json:
        sent = {"instances": [{"name": name, **config} for name in names]}
        return self.post("createInstances", sent, status=status)

    def get(self, *, status: int = 200) -> Json:
        return self.api.get(f"{MANAGERS}/g", status=status)

    def post(
        self, method: str, body: Json | None = None, *, status: int = 200, **query: object
    ) -> Json:
        return self.api.post(f"{MANAGERS}/g/{method}", body, status=status, **query)

    def managed(self) -> dict[str, Json]:
        """What the group says of its instances, by name."""
        listed = self.post("listManagedInstances").get("managedInstances", [])
        return {instance["name"]: instance for instance in listed}

    def instance(self, name: str, *, status: int = 200) -> Json:
        return self.api.get(f"{ZONE}/instances/{name}", status=status)


@pytest.fixture
def groups(api: Client, machines: FakeMachines) -> Groups:
    found = Groups(api)
    found.template()
    return found


class _Answer(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(type(self).status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """A test has no use for it."""


class Page:
    """What machines serve: a page that is there, or broken."""

    def __init__(self) -> None:
        self._handler = type("Answer", (_Answer,), {})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler)
        self.address = ("127.0.0.1", self.server.server_port)

    def answers(self, status: int) -> None:
        self._handler.status = status  # type: ignore[attr-defined]


@pytest.fixture
def page() -> Iterator[Page]:
    made = Page()
    with in_thread(made.server):
        yield made
