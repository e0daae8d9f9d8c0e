"""`tpustack follow` ends with what keeps costing, and which command ends that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tpustack.cloud.google import NotFound
from tpustack.engine import backend
from tpustack.errors import TpustackError, UsageError
from tpustack.logs import serial

from .conftest import Run


@pytest.fixture(autouse=True)
def deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "outputs_of", lambda stack: {})


def ends(monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> None:
    def run(*_: Any, **__: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(serial, "follow", run)


COSTS = (
    "TPU and VM cost $1.02 an hour until "
    "`pulumi destroy --stack dev`, even after training ends or fails. Its limits stop or delete "
    "the TPU after 30 idle minutes and 12 hours after its creation; the VM's disk and the bucket "
    "stay.\n"
)


def test_follow_ends_with_what_keeps_costing(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(monkeypatch)
    done = run("follow", "--stack", "dev")
    assert (done.code, done.out) == (0, COSTS)


def test_follow_of_a_failed_training_ends_with_what_keeps_costing(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(monkeypatch, TpustackError("the training on vm failed: no data"))
    done = run("follow", "--stack", "dev")
    assert (done.code, done.out) == (1, COSTS)
    assert "failed: no data" in done.err


def test_follow_works_while_the_stack_file_is_being_edited(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(monkeypatch)
    (project / "stacks" / "Pulumi.dev.yaml").write_text("config: [", encoding="utf-8")
    done = run("follow", "--stack", "dev")
    assert done.code == 0
    assert done.out == "TPU and VM keep costing until `pulumi destroy --stack dev`.\n"


def test_follow_of_a_stack_that_is_down_mentions_no_costs(
    project: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(stack: str) -> None:
        raise UsageError("nothing is up")

    monkeypatch.setattr(backend, "outputs_of", refuse)
    assert "cost" not in run("follow", "--stack", "dev").out


@pytest.mark.parametrize("architecture", ["vm", "compute"])
def test_a_machine_that_is_gone_comes_back_only_where_a_group_makes_it(architecture: str) -> None:
    class Gone:
        def get(self, *_: object) -> None:
            raise NotFound("not found")

    outputs = {"architecture": architecture, "project": "p", "vm_zone": "z", "vm_name": "t"}
    if architecture == "vm":
        said = serial._say_why_silent(Gone(), outputs, "advice")  # type: ignore[arg-type]
        assert said == "t is gone; waiting for the one that its group makes"
        return
    with pytest.raises(TpustackError, match="`tpustack recover` recreates a spot one"):
        serial._say_why_silent(Gone(), outputs, "advice")  # type: ignore[arg-type]
