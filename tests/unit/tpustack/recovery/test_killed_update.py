"""A killed engine's state is repaired in a copy, and written once."""

from __future__ import annotations

import copy
import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pulumi import automation

from tests.unit.tpustack.recovery.test_state import NETWORK, TPU, state
from tpustack.errors import TpustackError
from tpustack.recovery.locks import LockedError
from tpustack.recovery.repair import Recovery

READY = {"state": "READY", "networkEndpoints": [{"ipAddress": "10.0.0.2", "port": 8470}]}
Deployment = dict[str, Any]


class FakePulumi:
    """The command line on a backend with one stack, in a cloud that `refresh` stands for."""

    def __init__(self, deployment: Deployment) -> None:
        self.stored: dict[str, Any] = {"version": 3, "deployment": deployment}
        self.refreshes: list[Callable[[Deployment], Deployment]] = []
        self.lock = ""

    def run(
        self, args: list[str], _cwd: str, environment: Mapping[str, str], _line: object
    ) -> automation.CommandResult:
        if args[1] == "export":
            return automation.CommandResult(json.dumps(self.stored), "", 0)
        if args[1] == "import":
            self._needs_lock()
            self.stored = json.loads(Path(args[args.index("--file") + 1]).read_text())
        elif args[1] == "rename":
            self._needs_lock()
            raise automation.StackAlreadyExistsError(automation.CommandResult("", "", 255))
        else:
            assert args[0] == "refresh"
            folder = Path(environment["PULUMI_BACKEND_URL"].removeprefix("file://"))
            path = folder / ".pulumi/stacks/tpu-stack/local.json"
            checkpoint = json.loads(path.read_text())
            latest = checkpoint["checkpoint"]["latest"]
            checkpoint["checkpoint"]["latest"] = self.refreshes.pop(0)(latest)
            path.write_text(json.dumps(checkpoint))
        return automation.CommandResult("", "", 0)

    def _needs_lock(self) -> None:
        if self.lock:
            raise automation.ConcurrentUpdateError(automation.CommandResult("", self.lock, 255))


@pytest.fixture
def pulumi() -> FakePulumi:
    return FakePulumi(state([NETWORK | {"id": "n"}], creating=TPU))


@pytest.fixture
def recovery(pulumi: FakePulumi) -> Recovery:
    workspace = SimpleNamespace(pulumi_command=pulumi, work_dir=".", env_vars={})
    return Recovery("local", cast(automation.Workspace, workspace), lambda line: None)


def reads(**outputs: Any) -> Callable[[Deployment], Deployment]:
    """A refresh that finds the TPU."""

    def refresh(latest: Deployment) -> Deployment:
        network, tpu = latest["resources"]
        return {**latest, "resources": [network, tpu | {"outputs": outputs}]}

    return refresh


def fails(latest: Deployment) -> Deployment:
    """A refresh that is killed, or does not reach Google."""
    raise automation.CommandError(automation.CommandResult("", "error: no route to host", 255))


def test_the_state_is_written_once_after_resources_have_settled(
    pulumi: FakePulumi, recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    pulumi.refreshes = [reads(state="CREATING"), reads(state="CREATING"), reads(**READY)]
    before = recovery.interrupted()
    assert before is not None
    kept = copy.deepcopy(pulumi.stored)
    found = recovery.look(before)
    assert pulumi.refreshes == []
    assert pulumi.stored == kept
    recovery.write(found)
    assert found.created == [TPU["urn"]]
    assert pulumi.stored["deployment"]["resources"][1]["outputs"] == READY
    assert recovery.interrupted() is None


def test_resources_that_never_came_are_not_in_the_state(
    pulumi: FakePulumi, recovery: Recovery
) -> None:
    pulumi.refreshes = [lambda latest: {**latest, "resources": latest["resources"][:1]}]
    recovery.write(recovery.look(pulumi.stored))
    assert pulumi.stored["deployment"] == state([NETWORK | {"id": "n"}])


def test_a_look_that_fails_leaves_the_state_as_it_was(
    pulumi: FakePulumi, recovery: Recovery
) -> None:
    before = copy.deepcopy(pulumi.stored)
    pulumi.refreshes = [fails]
    with pytest.raises(TpustackError, match="no route to host"):
        recovery.look(pulumi.stored)
    assert pulumi.stored == before


def test_a_state_changed_by_another_run_is_not_overwritten(
    pulumi: FakePulumi, recovery: Recovery
) -> None:
    pulumi.refreshes = [reads(**READY)]
    found = recovery.look(pulumi.stored)
    pulumi.stored = {"version": 3, "deployment": state([])}
    with pytest.raises(TpustackError, match="changed by another run"):
        recovery.write(found)
    assert pulumi.stored["deployment"] == state([])


def test_nothing_is_written_while_the_stack_is_locked(
    pulumi: FakePulumi, recovery: Recovery
) -> None:
    recovery.ask_for_lock()
    pulumi.refreshes = [reads(**READY)]
    found = recovery.look(pulumi.stored)
    pulumi.lock = (
        "the stack is currently locked by 1 lock(s).\n  gs://b/l.json: created by ada@laptop "
        "(pid 42) at 2026-11-21T10:00:00Z"
    )
    for operation in (recovery.ask_for_lock, lambda: recovery.write(found)):
        with pytest.raises(LockedError) as refused:
            operation()
        assert refused.value.locks[0].user == "ada"
    assert pulumi.stored == found.before


def test_a_state_in_which_nothing_was_interrupted_is_left_alone(
    pulumi: FakePulumi, recovery: Recovery
) -> None:
    pulumi.stored = {"version": 3, "deployment": state([NETWORK])}
    assert recovery.interrupted() is None


MINE, THEIRS = {"labels": {"tpu-stack-mark": "mine"}}, {"labels": {"tpu-stack-mark": "theirs"}}


@pytest.mark.parametrize(
    ("wanted", "there", "taken"),
    [
        (MINE, MINE, True),
        (MINE, THEIRS, False),
        (MINE, {}, False),
        ({"description": "mine"}, {"description": "mine"}, True),
        ({"description": "mine"}, {"description": "theirs"}, False),
        ({}, THEIRS, True),  # It needs no mark.
    ],
)
def test_a_resource_that_another_stack_made_is_not_adopted(
    wanted: Deployment, there: Deployment, taken: bool
) -> None:
    tpu = TPU | {"inputs": TPU["inputs"] | wanted}
    pulumi = FakePulumi(state([NETWORK | {"id": "n"}], creating=tpu))
    pulumi.refreshes = [reads(**READY, **there)]
    said: list[str] = []
    workspace = SimpleNamespace(pulumi_command=pulumi, work_dir=".", env_vars={})
    recovery = Recovery("local", cast(automation.Workspace, workspace), said.append)
    recovery.write(recovery.look(pulumi.stored))
    kept = [each["urn"] for each in pulumi.stored["deployment"]["resources"]]
    assert kept == [NETWORK["urn"], *([TPU["urn"]] if taken else [])]
    refused = "tpu is there, but another stack made it: it is left alone"
    assert (refused in said) != taken
    assert recovery.interrupted() is None


def test_resources_already_in_the_state_are_kept_whatever_their_mark(
    pulumi: FakePulumi, recovery: Recovery
) -> None:
    relabelled = NETWORK | {"id": "n", "outputs": {"description": "somebody changed it"}}
    pulumi.stored["deployment"] = state([relabelled], creating=TPU)
    pulumi.refreshes = [lambda latest: {**latest, "resources": latest["resources"][:1]}]
    recovery.write(recovery.look(pulumi.stored))
    assert pulumi.stored["deployment"]["resources"] == [relabelled]
