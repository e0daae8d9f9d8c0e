"""Machines that serve at once without a process, so that the API's states are tested alone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core.cloud import Cloud
from localcloud.machines.spec import MachineSpec
from localcloud.testing import Client

PARENT = "projects/tpu-stack-local/locations/us-central1-b"
V1 = f"tpu.googleapis.com/v1/{PARENT}"
V2 = f"tpu.googleapis.com/v2/{PARENT}"
ALPHA = f"tpu.googleapis.com/v2alpha1/{PARENT}"


class FakeMachines:
    """What `Machines` does, as far as the TPU API notices: a listening port, the ready file."""

    def __init__(self) -> None:
        self.specs: dict[str, MachineSpec] = {}
        self.preempted: list[str] = []
        self._sockets: dict[str, socket.socket] = {}

    def boot(self, spec: MachineSpec) -> None:
        self.specs[spec.key] = spec
        for command in spec.daemons.values():
            options = dict(part.split("=", 1) for part in command if part.startswith("--"))
            self._sockets[spec.key] = socket.create_server(("127.0.0.1", int(options["--port"])))
            Path(options["--ready"]).write_text(options["--port"])

    def halt(self, key: str, *, grace: float | None = None) -> None:
        with contextlib.suppress(KeyError):
            self._sockets.pop(key).close()

    def preempt(self, key: str) -> None:
        self.preempted.append(key)
        self.halt(key)

    def remove(self, key: str) -> None:
        self.halt(key)
        self.specs.pop(key, None)

    def update(self, spec: MachineSpec) -> None:
        self.specs[spec.key] = spec

    def running(self, key: str) -> bool:
        return key in self._sockets

    def guest_attributes(self, key: str) -> dict[str, str]:
        return {"hostkeys/ssh-ed25519": f"key of {key.rpartition('/')[2]}"}

    def serial(self, key: str, start: int = 0) -> tuple[str, int]:
        return "", start

    def suspend_all(self) -> None:
        for key in list(self._sockets):
            self.halt(key)

    def resume_all(self) -> None:
        """Nothing ran."""


@pytest.fixture
def enabled_apis() -> tuple[str, ...]:
    return ("tpu.googleapis.com",)


@pytest.fixture
def machines(local_cloud: LocalCloud) -> Iterator[FakeMachines]:
    fake = FakeMachines()
    real = local_cloud.cloud.machines
    local_cloud.cloud.machines = fake  # type: ignore[assignment]
    yield fake
    fake.suspend_all()
    local_cloud.cloud.machines = real


@pytest.fixture
def cloud(local_cloud: LocalCloud, machines: FakeMachines) -> Cloud:
    return local_cloud.cloud


@pytest.fixture
def tpu(api: Client, machines: FakeMachines) -> Client:
    """The owner's client of a cloud with fake machines."""
    return api
