"""`tpustack ci limits` ends what costs while the stack's own machine can't."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from localcloud.app import LocalCloud
from localcloud.core import projects
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Fault
from localcloud.core.projects import DEFAULT_PROJECT
from localcloud.testing import Client, session
from tests.unit.localcloud.fake_machines import FakeMachines
from tests.unit.tpustack.conftest import Run
from tpustack.cloud import google

NODES = f"tpu.googleapis.com/v2/projects/{DEFAULT_PROJECT}/locations/us-central1-b/nodes"
BODY = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
NAMES = ["tpu-stack-mine-tpu-0", "tpu-stack-mine-tpu-1"]
HOUR = 3600.0


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCloud]:
    made = LocalCloud(tmp_path / "home", clock=VirtualClock(), latency="none")
    made.cloud.machines = FakeMachines()
    made.start()
    projects.enable_services(made.cloud, DEFAULT_PROJECT, ("tpu.googleapis.com",))
    who = session(made)
    monkeypatch.setattr(google, "_transport", lambda: who)
    monkeypatch.setattr("tpustack.ci.command.time.time", made.cloud.clock.now)
    for name in NAMES:
        Client(made).post(NODES, BODY | {"labels": {"tpu-stack": "mine"}}, nodeId=name)
    yield made
    made.stop()


def write(project: Path, hours: str) -> None:
    text = f"config:\n  gcp:project: {DEFAULT_PROJECT}\n  tpu-stack:zone: us-central1-b\n"
    text += "  tpu-stack:tpu:\n    acceleratorType: v2-8\n    slices: 2\n"
    text += f"    runtimeVersion: tpu-vm-tf-2.19.0-pod-pjrt\n{hours}"
    (project / "stacks" / "Pulumi.mine.yaml").write_text(text, encoding="utf-8")


def left(cloud: LocalCloud) -> list[str]:
    nodes = Client(cloud).get(NODES).get("nodes", [])
    return sorted(node["name"].rpartition("/")[2] for node in nodes)


def test_it_deletes_tpus_whose_time_is_up_and_no_others(
    cloud: LocalCloud, project: Path, run: Run
) -> None:
    write(project, "  tpu-stack:limits:\n    timeToLiveHours: 8\n")
    cloud.cloud.clock.sleep(7.9 * HOUR)
    done = run("ci", "limits", "--stack", "mine")
    assert (done.code, done.out, left(cloud)) == (0, "", NAMES), done.err
    cloud.cloud.clock.sleep(HOUR)
    done = run("ci", "limits", "--stack", "mine")
    assert (done.code, left(cloud)) == (0, []), done.err
    assert f"{NAMES[0]} is deleted: its 8 hours are over" in done.out
    done = run("ci", "limits", "--stack", "mine")
    assert (done.code, done.out) == (0, ""), done.err


def test_a_refusal_fails_the_run_after_the_others_were_deleted(
    cloud: LocalCloud, project: Path, run: Run
) -> None:
    write(project, "  tpu-stack:limits:\n    timeToLiveHours: 8\n")
    cloud.cloud.clock.sleep(9 * HOUR)
    refusal = Fault("tpu.*.delete", f"*/{NAMES[0]}", status=403, message="you may not")
    cloud.cloud.faults.add(refusal)
    done = run("ci", "limits", "--stack", "mine")
    assert (done.code, left(cloud)) == (1, NAMES[:1])
    assert "you may not" in done.err


def test_another_stacks_tpu_with_the_same_name_is_left_alone_and_said(
    cloud: LocalCloud, project: Path, run: Run
) -> None:
    write(project, "  tpu-stack:limits:\n    timeToLiveHours: 8\n")
    cloud.cloud.clock.sleep(9 * HOUR)
    labels = {"labels": {"tpu-stack": "other"}}
    Client(cloud).patch(f"{NODES}/{NAMES[1]}", labels, updateMask="labels")
    done = run("ci", "limits", "--stack", "mine")
    assert (done.code, left(cloud)) == (1, NAMES[1:])
    assert f"{NAMES[1]} in us-central1-b isn't labelled tpu-stack=mine" in done.err


def test_a_stack_without_the_limit_is_left_alone(
    cloud: LocalCloud, project: Path, run: Run
) -> None:
    write(project, "")
    cloud.cloud.clock.sleep(1000 * HOUR)
    done = run("ci", "limits", "--stack", "mine")
    assert (done.code, left(cloud)) == (0, NAMES)
    assert "no limits.timeToLiveHours" in done.out
