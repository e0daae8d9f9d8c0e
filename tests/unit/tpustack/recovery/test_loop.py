"""`tpustack recover --loop` looks each minute, and later after failures."""

from __future__ import annotations

import heapq
import random
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.unit.tpustack.conftest import Run, recovery_of
from tpustack.cloud.google import NotFound
from tpustack.commands import recovery, recovery as recover
from tpustack.errors import TpustackError
from tpustack.recovery.machines import lost_slices, lost_vms


class Enough(Exception):
    """The test has seen enough."""


def pauses(*outcomes: bool) -> tuple[list[float], list[str]]:
    """The pauses after looks that succeed or fail, and what was said."""
    waited: list[float] = []
    lines: list[str] = []
    left = list(outcomes)

    def once() -> None:
        if not left:
            raise Enough
        if not left.pop(0):
            raise TpustackError("the backend does not answer")

    with pytest.raises(Enough):
        recovery.repeat(once, lines.append, waited.append, lambda: 1.0)
    return waited, lines


def test_the_loop_looks_each_minute() -> None:
    assert pauses(True, True) == ([60.0, 60.0], [])


def test_the_loop_backs_off_up_to_an_hour_after_failures() -> None:
    waited, lines = pauses(*[False] * 8, True, False)
    assert waited == [120, 240, 480, 960, 1920, 3600, 3600, 3600, 60, 120]
    assert lines[0] == "trying again: the backend does not answer"


def test_a_hundred_slices_that_are_preempted_at_once_all_come_back_within_the_quota() -> None:
    chance, asked, made = random.Random(7), list[float](), dict[int, float]()

    def quiet(text: str) -> None:
        assert text.startswith("trying again: Quota exceeded")

    def look(number: int) -> None:
        if number in made:
            return
        asked.append(now)
        if sum(at > now - 60 for at in made.values()) >= 60:
            raise TpustackError("Quota exceeded: 60 creations a minute")
        made[number] = now

    # Each loop began at some time, so that each looks at another second of the minute.
    loops = [
        (chance.uniform(0, 60), number, recovery.looks(partial(look, number), quiet, chance.random))
        for number in range(100)
    ]
    heapq.heapify(loops)
    while len(made) < len(loops):
        now, number, loop = heapq.heappop(loops)
        heapq.heappush(loops, (now + next(loop), number, loop))
    # Nobody is starved: the last is back four minutes after its preemption, after few refusals.
    assert max(made.values()) < 240
    assert len(asked) < 2 * len(made)


def test_the_loop_recreates_preempted_tpus_without_asking(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where an update is at work: it waits for its end."""
    lost: list[dict[str, str]] = [{"tpu": "PREEMPTED"}, {}]
    renewed: list[Any] = []
    recovery = recovery_of(locks=lambda: None, interrupted=lambda: None)
    stack = SimpleNamespace(
        recovery=lambda line, ended: recovery,
        outputs=lambda: {"tpu_names": ["tpu"]},
        resources=list,
        renew=lambda targets, line, replaced: renewed.append(targets),
    )
    monkeypatch.setattr(recover, "users_own", lambda: SimpleNamespace(stack=lambda name: stack))
    monkeypatch.setattr(recover, "Google", MagicMock)
    monkeypatch.setattr("tpustack.commands.recovery.lost_tpus", lambda google, outputs: lost.pop(0))

    def twice(once: Any, say: Any) -> None:
        once()
        once()

    monkeypatch.setattr(recover, "repeat", twice)
    done = run("recover", "--stack", "dev", "--loop")
    assert done.code == 0
    assert renewed == [[]]
    assert "The TPU tpu is PREEMPTED; it is recreated." in done.out
    assert "Nothing was being created" not in done.out


VM = "urn:pulumi:dev::tpu-stack::gcp:compute/instance:Instance::instance"
ADDRESS = "https://compute.googleapis.com/compute/v1/projects/p/zones/z/instances/vm"


class Answers:
    """Google, for one VM."""

    def __init__(self, status: str | None) -> None:
        self.status = status

    def get(self, url: str) -> dict[str, str]:
        assert url == ADDRESS
        if self.status is None:
            raise NotFound("not found")
        return {"status": self.status}


@pytest.mark.parametrize(
    ("status", "preemptible", "lost"),
    [
        ("TERMINATED", True, "TERMINATED"),
        (None, True, "gone"),
        ("RUNNING", True, None),
        ("STOPPING", True, None),
        ("TERMINATED", False, None),
    ],
)
def test_only_a_preemptible_vm_counts_as_lost(
    status: str | None, preemptible: bool, lost: str | None
) -> None:
    outputs = {"project": "p", "zone": "z", "name": "vm"}
    outputs_of_vm = {**outputs, "scheduling": {"preemptible": preemptible}}
    resources = [
        {"urn": VM, "type": "gcp:compute/instance:Instance", "outputs": outputs_of_vm},
        {"urn": "another", "type": "gcp:compute/network:Network"},
    ]
    found = lost_vms(Answers(status), resources)  # type: ignore[arg-type]
    assert found == ({VM: lost} if lost else {})


def test_a_machine_with_a_tpu_is_looked_for_among_the_vms_alone() -> None:
    outputs = {"architecture": "compute", "project": "p", "tpu_names": ["t"], "tpu_zone": "z"}
    assert recovery.lost_tpus(None, outputs) == {}  # type: ignore[arg-type]


def test_a_lost_vm_is_started_without_touching_a_tpu_that_stands(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[Any] = []
    stack = SimpleNamespace(
        recovery=lambda line, ended: recovery_of(locks=lambda: None, interrupted=lambda: None),
        outputs=lambda: {"tpu_names": ["tpu"]},
        resources=list,
        renew=lambda targets, line, replaced: renewed.append((targets, replaced)),
    )
    monkeypatch.setattr(recover, "users_own", lambda: SimpleNamespace(stack=lambda name: stack))
    monkeypatch.setattr(recover, "Google", MagicMock)
    monkeypatch.setattr(recovery, "lost_tpus", lambda google, outputs: {})
    monkeypatch.setattr(recovery, "lost_vms", lambda google, resources: {VM: "TERMINATED"})
    done = run("recover", "--stack", "dev")
    assert renewed == [([VM], ())]
    assert "The VM is TERMINATED (instance); it is started again." in done.out
    assert "The VM is back." in done.out


SLICE = "urn:pulumi:dev::tpu-stack::gcp:compute/instanceGroupManager:InstanceGroupManager::tpu"
RUNS = {"currentAction": "NONE", "instanceStatus": "RUNNING"}


STABLE = {"isStable": True, "bulkInstanceOperation": {"inProgress": False}}


class Managed:
    """Google, for one group of two machines with this status; None: there is no group."""

    def __init__(self, status: dict[str, Any] | None, *machines: dict[str, str]) -> None:
        self.status, self.machines = status, machines

    def get(self, url: str) -> dict[str, Any]:
        assert url.endswith("/projects/p/zones/z/instanceGroupManagers/t")
        if self.status is None:
            raise NotFound("not found")
        return {"targetSize": 2, "status": self.status}

    def post(self, url: str, body: object) -> dict[str, Any]:
        assert url.endswith("/instanceGroupManagers/t/listManagedInstances")
        return {"managedInstances": list(self.machines)}


@pytest.mark.parametrize(
    ("status", "machines", "lost"),
    [
        (STABLE, (RUNS, RUNS), None),
        (STABLE, (RUNS, {"currentAction": "NONE"}), "without 1 of its 2 machines"),
        (STABLE, (RUNS,), "without 1 of its 2 machines"),
        (STABLE, (), "without 2 of its 2 machines"),
        # Google restarts what it stopped for maintenance.
        (STABLE, (RUNS, {**RUNS, "instanceStatus": "TERMINATED"}), None),
        # Google is bringing it back itself, whichever machine it begins with.
        (
            {"isStable": False},
            ({"currentAction": "NONE"}, {"currentAction": "RECREATING"}),
            None,
        ),
        # It began after the group said that it was stable.
        (STABLE, (RUNS, {"currentAction": "RECREATING"}), None),
        # The slice waits for capacity.
        ({"isStable": True, "bulkInstanceOperation": {"inProgress": True}}, (), None),
        (None, (), "gone"),
    ],
)
def test_a_slice_without_a_machine_is_lost_unless_google_brings_it_back(
    status: dict[str, Any] | None, machines: tuple[dict[str, str], ...], lost: str | None
) -> None:
    outputs = {"project": "p", "zone": "z", "name": "t", "targetSize": 2}
    kind = "gcp:compute/instanceGroupManager:InstanceGroupManager"
    resources = [
        {"urn": SLICE, "type": kind, "outputs": {**outputs, "targetSizePolicies": [{}]}},
        # A group of VMs brings them back.
        {"urn": "vm", "type": kind, "outputs": outputs},
    ]
    found = lost_slices(Managed(status, *machines), resources)  # type: ignore[arg-type]
    assert found == ({SLICE: lost} if lost else {})


def test_a_lost_slice_is_deleted_and_recreated_as_a_whole(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed: list[Any] = []
    stack = SimpleNamespace(
        recovery=lambda line, ended: recovery_of(locks=lambda: None, interrupted=lambda: None),
        outputs=dict,
        resources=list,
        renew=lambda targets, line, replaced: renewed.append((targets, replaced)),
    )
    monkeypatch.setattr(recover, "users_own", lambda: SimpleNamespace(stack=lambda name: stack))
    monkeypatch.setattr(recover, "Google", MagicMock)
    monkeypatch.setattr(recovery, "lost_slices", lambda google, resources: {SLICE: "gone"})
    done = run("recover", "--stack", "dev")
    assert renewed == [([SLICE], (SLICE,))]
    assert "The TPU is gone (tpu); all its machines are deleted and recreated." in done.out
    assert "The TPU is back." in done.out


def test_the_loop_releases_no_lock(run: Run) -> None:
    done = run("recover", "--stack", "dev", "--loop", "--yes")
    assert done.code == 2
    assert "--yes is not for --loop" in done.err
