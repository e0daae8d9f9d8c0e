"""`tpustack logs` prints what a VM wrote, from Cloud Logging."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock, rfc3339
from localcloud.core.cloud import SerialLog
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import session
from tests.unit.localcloud.fake_machines import FakeMachines
from tpustack.cloud import google
from tpustack.logs import serial

from .conftest import Run

VM = "tpu-stack-mine-vm"
OUTPUT = (
    b"SeaBIOS (version 1.8)\r\n\r\n"
    b"[    2.000000] startup-script[7]: \x1b[32mready\x1b[0m\r\n"
    b"[    3.000000] training[8]: progress step=10/20 loss=0.5 accuracy=0.9\r\n"
)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    made = LocalCloud(tmp_path / "home", clock=VirtualClock())
    made.cloud.machines = FakeMachines()
    made.start()
    who = session(made)
    monkeypatch.setattr(google, "_transport", lambda: who)
    yield made
    made.stop()


@pytest.fixture
def wrote(cloud: LocalCloud) -> Callable[..., None]:
    """Let a VM have written, some seconds from now."""
    machines = cloud.cloud.machines
    assert isinstance(machines, FakeMachines)

    def write(number: int, output: bytes, *, later: float = 0.0, name: str = VM) -> None:
        boots = ((0, cloud.cloud.clock.now() + later),)
        log = SerialLog(DEFAULT_PROJECT, "us-central1-b", name, number, boots, output)
        machines.logs.append(log)

    return write


@pytest.fixture
def stack(project: Path) -> str:
    text = f"config:\n  gcp:project: {DEFAULT_PROJECT}\n  tpu-stack:zone: us-central1-b\n"
    text += "  tpu-stack:tpu:\n    acceleratorType: v2-8\n"
    text += "    runtimeVersion: tpu-vm-tf-2.19.0-pod-pjrt\n"
    (project / "stacks" / "Pulumi.mine.yaml").write_text(text, encoding="utf-8")
    return "mine"


def test_all_vms_of_the_stacks_name_are_shown_oldest_first_as_follow_shows_them(
    run: Run, stack: str, cloud: LocalCloud, wrote: Callable[..., None]
) -> None:
    wrote(8, b"[    1.000000] the group made a new one\n", later=60)
    wrote(7, OUTPUT)
    wrote(9, b"[    1.000000] of another VM\n", name="other-vm")
    done = run("logs", "--stack", stack)
    begins, again = (rfc3339(cloud.cloud.clock.now() + later) for later in (0, 61))
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        f"{VM} (number 7) from {begins} on:",
        "  SeaBIOS (version 1.8)",
        "  [    2.000000] startup-script[7]: ready",
        "  training 10/20 · loss 0.500 · accuracy 0.900",
        f"{VM} (number 8) from {again} on:",
        "  [    1.000000] the group made a new one",
    ]


def test_long_trainings_come_in_several_pages(
    run: Run, stack: str, wrote: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serial, "_PAGE", 2)
    wrote(7, b"".join(b"[    1.000000] line %d\n" % number for number in range(5)))
    assert len(run("logs", "--stack", stack).out.splitlines()) == 6


def test_an_empty_log_says_what_may_be_switched_off(run: Run, stack: str, cloud: None) -> None:
    done = run("logs", "--stack", stack)
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        f"error: Cloud Logging has nothing from the last 30 days of a VM {VM} in "
        f"{DEFAULT_PROJECT}. Either no such VM ran, or serial port logging is off: the VM's "
        "metadata serial-port-logging-enable is not true, or the organization policy "
        "compute.disableSerialPortLogging forbids it. While the VM runs, `tpustack follow --stack "
        "mine` reads its serial port\n"
    )


def test_an_api_that_is_off_is_named_with_the_command_that_enables_it(
    run: Run, stack: str, cloud: LocalCloud
) -> None:
    key = projects.service_key(DEFAULT_PROJECT, "logging.googleapis.com")
    cloud.cloud.store.delete(projects.ENABLED_SERVICE, key)
    done = run("logs", "--stack", stack)
    assert done.code == 1
    assert done.err == (
        f"error: logging.googleapis.com is disabled in {DEFAULT_PROJECT}: `gcloud services enable "
        f"logging.googleapis.com --project {DEFAULT_PROJECT}` enables it\n"
    )


def test_a_denied_read_names_the_missing_role(
    run: Run, stack: str, cloud: LocalCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = session(cloud, "user:stranger@example.com")
    monkeypatch.setattr(google, "_transport", lambda: stranger)
    done = run("logs", "--stack", stack)
    assert done.code == 1
    assert done.err.startswith(
        f"error: you may not read the logs of {DEFAULT_PROJECT}: ask for roles/logging.viewer "
        "there (permission logging.logEntries.list). Google's answer: "
    )


def test_a_stack_without_a_file_is_refused(run: Run, project: Path) -> None:
    done = run("logs", "--stack", "none")
    assert done.code == 2
    assert done.err.startswith(
        'error: stack: "none" has no file Pulumi.none.yaml. Existing files: '
    )
    assert run("check", "--stack", "none").err.count(done.err.removeprefix("error: ")) == 1
