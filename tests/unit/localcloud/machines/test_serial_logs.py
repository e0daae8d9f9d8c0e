"""Which serial ports go to Cloud Logging, and that they stay there."""

from __future__ import annotations

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.cloud import SerialLog
from tests.unit.localcloud.machines.conftest import Guest, spec

pytestmark = pytest.mark.server

PROJECT = projects.DEFAULT_PROJECT
ON = "serial-port-logging-enable"
DONE = "Finished running startup scripts."


def logs(guest: Guest) -> list[SerialLog]:
    return guest.machines.serial_logs(PROJECT)


def test_serial_logs_survive_their_vm_and_a_restart(guest: Guest, local_cloud: LocalCloud) -> None:
    machine = spec(attributes={"startup-script": "echo trained", ON: "TRUE"})
    guest.boot(machine)
    guest.sees(machine.key, DONE)
    guest.machines.halt(machine.key, grace=1)
    guest.boot(machine)
    guest.machines.halt(machine.key, grace=1)
    (there,) = logs(guest)
    assert (there.name, there.number, there.zone) == ("m", 42, "us-central1-b")
    assert b"trained" in there.output
    (first, booted), (second, again) = there.boots
    assert first == 0
    assert there.output[second:].startswith(there.output[:10])
    assert booted < again
    guest.machines.remove(machine.key)
    assert logs(guest) == [there]


def test_a_vm_of_the_same_name_does_not_replace_the_log_of_the_first(guest: Guest) -> None:
    for number in (42, 43):
        key = guest.boot(spec(number=number, attributes={ON: "true"}))
        guest.machines.remove(key)
    assert [log.number for log in logs(guest)] == [42, 43]


def test_nothing_goes_there_unless_the_metadata_of_vm_or_project_says_so(
    guest: Guest, local_cloud: LocalCloud
) -> None:
    guest.boot(spec(name="silent", number=1))
    guest.boot(spec(name="refuses", number=2, attributes={ON: "false"}))
    assert logs(guest) == []
    common = [{"key": ON, "value": "true"}]
    projects.set_common_metadata(local_cloud.cloud, PROJECT, common)
    assert [log.name for log in logs(guest)] == ["silent"]
