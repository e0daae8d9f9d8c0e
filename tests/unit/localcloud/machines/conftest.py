from __future__ import annotations

from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import Clock
from localcloud.core.cloud import MachineSpec
from tests.patience import until


@pytest.fixture
def clock() -> Clock:
    """Machines are real processes: they run in real time."""
    return Clock()


def spec(script: str = "", name: str = "m", **fields: object) -> MachineSpec:
    """A machine with a start-up script."""
    attributes = {"startup-script": script} if script else {}
    values: dict[str, object] = {
        "key": f"projects/{projects.DEFAULT_PROJECT}/zones/us-central1-b/instances/{name}",
        "project": projects.DEFAULT_PROJECT,
        "zone": "us-central1-b",
        "name": name,
        "number": 42,
        "machine_type": "n1-standard-2",
        "attributes": attributes,
    }
    return MachineSpec(**(values | fields))  # type: ignore[arg-type]


class Guest:
    """A machine as a test sees it."""

    def __init__(self, local_cloud: LocalCloud, home: Path) -> None:
        self.machines = local_cloud.cloud.machines
        self.home = home

    def boot(self, machine: MachineSpec) -> str:
        self.machines.boot(machine)
        return machine.key

    def run(self, script: str) -> str:
        """Boot a machine with the script, wait for its end, answer the serial port."""
        key = self.boot(spec(f"{script}\n"))
        self.sees(key, "Finished running startup scripts.")
        return self.machines.serial(key)[0]

    def sees(self, key: str, text: str) -> None:
        until(lambda: text in self.machines.serial(key)[0])


@pytest.fixture
def guest(local_cloud: LocalCloud, tmp_path: Path) -> Guest:
    return Guest(local_cloud, tmp_path / "home")
