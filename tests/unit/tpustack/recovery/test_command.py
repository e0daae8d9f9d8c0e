"""`tpustack recover` asks before it releases a lock whose holder may be at work."""

from __future__ import annotations

import io
import sys
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.tpustack.conftest import Run
from tpustack.commands import recovery
from tpustack.recovery.locks import Lock, LockedError
from tpustack.recovery.repair import Recovery

NOW = datetime.now(timezone.utc)
FRESH = Lock("gs://state/dev.json", "grace", "laptop", 42, NOW)
DEAD = Lock("gs://state/dev.json", "runner", "ci", 7, NOW)


class FakeRecovery(Recovery):
    """A stack's state behind a lock."""

    def __init__(self, locks: list[Lock] | None) -> None:
        self.notes = []
        self.held = locks
        self.released = False

    def locks(self) -> list[Lock] | None:
        return self.held

    def are_orphaned(self, locks: list[Lock]) -> bool:
        return bool(locks) and all(lock.user == "runner" for lock in locks)

    def release(self, locks: list[Lock]) -> None:
        assert locks == self.held
        self.held, self.released = None, True

    def interrupted(self) -> dict[str, Any]:
        return {}

    def ask_for_lock(self) -> None:
        if self.held is not None:
            raise LockedError(self.held)

    def look(self, state: dict[str, Any]) -> Any:
        return SimpleNamespace(created=["urn:pulumi:dev::tpu-stack::gcp:tpu/v2Vm:V2Vm::tpu"])

    def write(self, found: object) -> None:
        self.ask_for_lock()


@pytest.fixture
def held_by(monkeypatch: pytest.MonkeyPatch) -> Any:
    def lock(*locks: Lock, free: bool = False) -> FakeRecovery:
        found = FakeRecovery(None if free else list(locks))
        stack = SimpleNamespace(recovery=lambda line, ended: found, resources=list)
        # It has no `select`: which stack Pulumi selected is the person's own matter.
        backend = SimpleNamespace(stack=lambda name: stack)
        monkeypatch.setattr(recovery, "users_own", lambda: backend)
        return found

    return lock


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_an_unlocked_stack_is_repaired(run: Run, held_by: Any) -> None:
    held_by(free=True)
    done = run("recover", "--stack", "dev")
    assert (done.code, "Released" in done.out, "::tpu\n" in done.out) == (0, False, True)


@pytest.mark.parametrize("locks", [[FRESH], [DEAD, FRESH], []])
def test_a_lock_whose_holder_may_be_at_work_stays_and_is_named(
    run: Run, held_by: Any, locks: list[Lock]
) -> None:
    found = held_by(*locks)
    done = run("recover", "--stack", "dev")
    assert (done.code, found.released, len(done.err.splitlines())) == (1, False, 1)
    named = "grace@laptop (process 42)" if locks else "a holder whom the engine does not name"
    assert named in done.err
    assert "`tpustack recover --yes --stack dev`" in done.err


def test_yes_releases_the_lock_and_names_its_holder(run: Run, held_by: Any) -> None:
    found = held_by(FRESH)
    done = run("recover", "--stack", "dev", "--yes")
    assert (done.code, found.released) == (0, True)
    assert done.out.startswith("Released the lock of grace@laptop (process 42) since ")


def test_the_lock_of_a_run_that_is_dead_for_sure_is_released_and_named(
    run: Run, held_by: Any
) -> None:
    found = held_by(DEAD)
    done = run("recover", "--stack", "dev")
    assert (done.code, found.released) == (0, True)
    assert done.out.startswith("Released the lock of runner@ci (process 7) since ")


@pytest.mark.parametrize(("answer", "released"), [("y\n", True), ("n\n", False), ("\n", False)])
def test_recover_asks_at_a_terminal_before_it_releases_a_lock(
    run: Run, held_by: Any, monkeypatch: pytest.MonkeyPatch, answer: str, released: bool
) -> None:
    found = held_by(FRESH)
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    done = run("recover", "--stack", "dev")
    assert (found.released, done.code) == (released, 0 if released else 1)
    assert "grace@laptop" in done.out + done.err
    assert ("Nothing was changed" in done.err) is not released
