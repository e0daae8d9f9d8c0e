"""How often the agent looks after limits and TPUs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from infra.startup.agent.google import Json, Place
from infra.startup.agent.keeper import Keeper

LIMITS = {"tpus": ["tpu"], "recovery": {"failures": 1, "preemptions": 1}, "turnOff": True}


class Fake:
    """A machine in virtual time, an enforcer of limits that are over, and a recovery."""

    hurries = False

    def __init__(self) -> None:
        self.time = 0.0
        self.looks: list[float] = []
        self.fails = 0
        self.renewed: list[str] = []
        self.state = "READY"
        self.preempted_at: float | None = None
        self.keeper: Keeper | None = None

    def has_limits(self) -> bool:
        return True

    def limits(self, seconds: int) -> dict[str, Any]:
        """The first answer comes at once, as nothing is known yet."""
        self.time += seconds if self.time else 1
        if self.time == self.preempted_at and self.keeper is not None:
            self.state = "PREEMPTED"
            # The trainer has lost its worker, and asks why; then again and again.
            self.keeper.tpu_state()
        return LIMITS

    def tpus(self) -> list[str]:
        return ["tpu"]

    def call(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        return 200, {"state": self.state}

    def turn_off(self) -> None:
        pass

    def look(self, *arguments: Any) -> bool:
        if len(arguments) == 1:
            return len(self.looks) >= 4
        self.looks.append(self.time)
        if self.fails:
            self.fails -= 1
            raise OSError("HTTP status 403")
        return True

    def renew(self, names: list[str], budgets: Json, request: str | None, why: str) -> None:
        self.renewed.append(why)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    made = Fake()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    machine: Any = made
    made.keeper = Keeper(machine, Place("project", "zone", "bucket"), lambda _: None)
    made.keeper.enforcer = made.keeper.recovery = machine
    return made


def test_it_looks_every_ten_seconds_also_after_a_look_that_fails(fake: Fake) -> None:
    assert fake.keeper
    fake.fails = 1
    fake.keeper.keep()
    assert fake.looks == [1, 11, 21, 31]


def test_what_goes_on_failing_is_told_once_and_tried_after_pauses_that_grow(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fake.keeper
    lines, pauses = list[str](), list[float]()
    fake.keeper._say = lines.append
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr("random.uniform", lambda *_: 1.0)
    fake.fails = 6
    fake.keeper.keep()
    assert lines == ["trying again: HTTP status 403", "turning this machine off"]
    assert pauses == [15, 30, 60, 120, 120, 120]


def test_a_tpu_that_the_trainer_finds_lost_is_looked_at_at_once_and_only_once(fake: Fake) -> None:
    assert fake.keeper
    fake.preempted_at = 14
    fake.keeper.keep()
    assert fake.looks == [1, 11, 14, 24]


def test_it_hurries_while_a_tpu_is_made(fake: Fake) -> None:
    assert fake.keeper
    fake.hurries = True
    fake.keeper.keep()
    assert fake.looks == [1, 2, 3, 4]


def test_only_a_stack_with_recovery_lets_the_trainer_have_its_tpu_made_anew(fake: Fake) -> None:
    assert fake.keeper
    fake.keeper.renew("it hung")
    assert fake.renewed == []
    fake.keeper.keep()
    fake.keeper.renew("it hung")
    assert fake.renewed == ["it hung"]
