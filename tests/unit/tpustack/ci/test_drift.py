"""Drift tells what is off, and what the stack's own limits have turned off."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml

from tpustack.ci import drift
from tpustack.ci.job import Job
from tpustack.ci.outcome import Outcome
from tpustack.engine.events import Change

VM, TPU = "gcp:compute/instance:Instance", "gcp:tpu/v2Vm:V2Vm"
OFF = Change("update", VM, "instance", ("currentStatus: TERMINATED",))
IDLE = Change("update", TPU, "tpu", ("state: STOPPED",))
LABEL = Change("update", VM, "instance", ("labels.team",))


def job(tmp_path: Path, events: Any, **settings: Any) -> Job:
    (tmp_path / "stacks").mkdir()
    config = {"gcp:project": "some-project", "tpu-stack:zone": "us-central1-b", **settings}
    text = yaml.safe_dump({"config": config})
    (tmp_path / "stacks" / "Pulumi.dev.yaml").write_text(text, encoding="utf-8")
    done = SimpleNamespace(failure="", events=events)
    stack = SimpleNamespace(drift=lambda line: done)
    backend = SimpleNamespace(stacks=lambda: {"dev": None}, stack=lambda name: stack)
    fake = SimpleNamespace(backend=backend, root=tmp_path, line=lambda name: print)
    return cast(Job, fake)


def events(changes: tuple[Change, ...], noticed: tuple[Change, ...]) -> Any:
    return SimpleNamespace(changes=changes, noticed=noticed)


@pytest.mark.parametrize("noticed", [OFF, IDLE])
def test_what_is_off_is_drift_that_no_deployment_undoes(tmp_path: Path, noticed: Change) -> None:
    (found,) = drift.drift(job(tmp_path, events((), (noticed,))), ["dev"])
    assert (found.outcome, found.changes) == (Outcome.DRIFT, (noticed,))
    assert "Put it back" not in found.notes[0]
    assert f"left so: {noticed.name} ({noticed.properties[0]})" in found.notes[0]


def test_a_resource_with_both_is_named_once(tmp_path: Path) -> None:
    (found,) = drift.drift(job(tmp_path, events((LABEL,), (OFF,))), ["dev"])
    (change,) = found.changes
    assert change.properties == ("labels.team", "currentStatus: TERMINATED")
    assert len(found.notes) == 3


@pytest.mark.parametrize(
    ("pipeline", "command"),
    [
        ("stacks: [dev]\n", "tpustack ci deploy"),
        ("stacks: [prod]\n", "pulumi up"),
        (None, "pulumi up"),
    ],
)
def test_the_way_back_is_a_command_that_takes_the_stack(
    tmp_path: Path, pipeline: str | None, command: str
) -> None:
    of = job(tmp_path, events((LABEL,), ()))
    if pipeline:
        (tmp_path / "stacks" / "pipeline.yaml").write_text(pipeline, encoding="utf-8")
    (found,) = drift.drift(of, ["dev"])
    assert found.notes[0].startswith(f"Put it back with `{command} --refresh --stack dev`, or")


def test_a_tpu_that_the_idle_limit_stopped_is_no_drift(tmp_path: Path) -> None:
    limits = {"tpu-stack:limits": {"idleMinutes": 30}}
    (found,) = drift.drift(job(tmp_path, events((), (IDLE,)), **limits), ["dev"])
    assert found.outcome is Outcome.NO_CHANGE


def test_nothing_is_no_drift_of_what_can_be_seen(tmp_path: Path) -> None:
    (found,) = drift.drift(job(tmp_path, events((), ())), ["dev"])
    assert found.outcome is Outcome.NO_CHANGE
    assert "IAM roles" in found.notes[0]
