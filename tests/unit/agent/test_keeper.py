"""How often the agent looks after limits and TPUs."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from tests.unit.agent.fake_google import FakeClient
from tpu_agent import main
from tpu_agent.main import Keeper
from tpu_core import times
from tpu_core.contract import Limits
from tpu_core.google import Json
from tpu_core.tpu import Place

LIMITS: Limits = {"tpus": ["tpu"], "recovery": {"failures": 1, "preemptions": 1}, "turnOff": True}


class Over(BaseException):
    """The test has seen enough."""


class Fake:
    """A machine in virtual time, an enforcer of limits that are over, and a recovery."""

    hurries = ended = False

    def __init__(self) -> None:
        self.time = 0.0
        self.looks: list[float] = []
        self.enforced = 0
        self.fails = 0
        self.renewed: list[str] = []
        self.state = "READY"
        self.off = False

    def has_limits(self) -> bool:
        return True

    def limits(self, seconds: int) -> Limits:
        return LIMITS

    def tpus(self) -> list[str]:
        return ["tpu"]

    @property
    def client(self) -> FakeClient:
        return FakeClient(self.call)

    def call(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        return 200, {"state": self.state}

    def turn_off(self) -> None:
        self.off = True

    def look(self, *arguments: Any) -> bool:
        if len(arguments) == 1:
            self.enforced += 1
            return self.enforced >= 3
        self.looks.append(self.time)
        if self.fails:
            self.fails -= 1
            raise OSError("HTTP status 403")
        return True

    def renew(self, names: list[str], budgets: Json, request: str | None, why: str) -> None:
        self.renewed.append(why)


class Bell(threading.Event):
    """Rings in virtual time; ends the test after so many waits."""

    def __init__(self, fake: Fake, waits: int) -> None:
        super().__init__()
        self.fake, self.waits = fake, waits
        self.rung: dict[int, Any] = {}

    def wait(self, timeout: float | None = None) -> bool:
        self.waits -= 1
        if not self.waits:
            raise Over
        if ring := self.rung.get(self.waits):
            ring()
            assert self.is_set()
            self.fake.time += 1
        else:
            self.fake.time += timeout or 0.0
        return True


class World(Fake):
    """With its keeper."""

    def __init__(self) -> None:
        super().__init__()
        machine: Any = self
        self.lines: list[str] = []
        self.keeper = Keeper(machine, Place("project", "zone", "bucket"), self.lines.append)
        self.keeper.enforcer = self.keeper.recovery = machine

    def recovers(self, waits: int = 5) -> Bell:
        """Let recovery's thread look until it has waited so often."""
        self.keeper._limits = LIMITS
        self.keeper._bell = bell = Bell(self, waits)
        return bell

    def runs(self) -> list[float]:
        with pytest.raises(Over):
            self.keeper.recover()
        return self.looks


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return World()


def test_it_looks_within_three_seconds_also_after_a_look_that_fails(fake: World) -> None:
    fake.fails = 1
    fake.recovers()
    assert fake.runs() == [0, 0, 2.5, 5, 7.5, 10]


@pytest.mark.parametrize("error", [OSError("HTTP status 403"), KeyError("zone"), TypeError("no")])
def test_limits_are_kept_while_recovery_fails_with_whatever(
    fake: World, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    begun = threading.Event()

    def fails(*arguments: Any) -> bool:
        if begun.is_set():
            threading.Event().wait()
        begun.set()
        raise error

    machine: Any = fake
    fake.keeper.recovery = type("Recovery", (), {"look": fails, "hurries": True, "ended": False})()
    fake.keeper._limits = LIMITS
    threading.Thread(target=fake.keeper.recover, daemon=True).start()
    assert begun.wait(10)
    fake.keeper.enforcer = machine
    fake.keeper.keep()
    assert (fake.enforced, fake.off) == (3, True)


def test_a_time_that_is_up_while_no_tpu_is_there_turns_the_machine_off(fake: World) -> None:
    fake.ended = True
    fake.keeper.keep()
    assert (fake.enforced, fake.off) == (1, True)


@pytest.mark.parametrize("error", [OSError("HTTP status 500"), KeyError("createTime")])
def test_limits_are_looked_at_again_whatever_has_gone_wrong(fake: World, error: Exception) -> None:
    look = fake.look
    failures = [error, error]

    def fails(*arguments: Any) -> bool:
        if failures:
            raise failures.pop()
        return look(*arguments)

    fake.look = fails  # type: ignore[method-assign]
    fake.keeper.keep()
    assert fake.off


def test_what_keeps_failing_is_reported_once_and_retried_with_growing_pauses(
    fake: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(times, "backoff", lambda tries, first, most: min(most, first * 2**tries))
    fake.fails = 6
    fake.recovers(1)
    fake.runs()
    assert fake.lines == ["retrying: HTTP status 403"]
    assert pauses == [15, 30, 60, 120, 120, 120]


def test_a_tpu_that_the_trainer_finds_lost_is_looked_at_at_once_and_only_once(fake: World) -> None:
    def preempted() -> None:
        fake.state = "PREEMPTED"
        # The trainer has lost its worker, and asks why; then again and again.
        fake.keeper.tpu_state()

    bell = fake.recovers()
    fake.keeper.tpu_state()
    bell.clear()
    bell.rung = {3: preempted}
    assert fake.runs() == [0, 2.5, 3.5, 6, 8.5]
    fake.keeper.tpu_state()
    assert not bell.is_set()


def test_it_hurries_while_a_tpu_is_made(fake: World) -> None:
    fake.hurries = True
    fake.recovers()
    assert fake.runs() == [0, 1, 2, 3, 4]


def test_other_limits_are_heard_by_both(fake: World) -> None:
    fake.keeper.keep()
    assert fake.keeper._bell.is_set()
    assert fake.keeper.budgets() == LIMITS["recovery"]


def test_only_a_stack_with_recovery_lets_the_trainer_have_its_tpu_recreated(fake: World) -> None:
    fake.keeper.renew("it hung")
    assert fake.renewed == []
    fake.keeper.keep()
    fake.keeper.renew("it hung")
    assert fake.renewed == ["it hung"]


def test_a_trainer_that_can_not_be_looked_after_ends_no_agent() -> None:
    class Full:
        def look(self) -> float:
            raise OSError(28, "No space left on device")

    trainer: Any = Full()
    assert main._look(trainer) == main._TRAINER_RETRY_SECONDS
