"""How often the agent looks after limits and TPUs."""

from __future__ import annotations

import time
from typing import Any

import pytest

from infra.startup.agent.google import Place
from infra.startup.agent.keeper import Keeper

LIMITS = {"tpus": ["tpu"], "recovery": {"failures": 1, "preemptions": 1}, "turnOff": True}


class Fake:
    """A machine, an enforcer of limits that are over at once, and a recovery that fails first."""

    hurries = False

    def __init__(self) -> None:
        self.waits: list[int] = []

    def has_limits(self) -> bool:
        return True

    def limits(self, seconds: int) -> dict[str, Any]:
        self.waits.append(seconds)
        return LIMITS

    def turn_off(self) -> None:
        pass

    def look(self, *arguments: Any) -> bool:
        if len(arguments) > 1 and len(self.waits) == 1:
            raise OSError("HTTP status 403")
        return True


def test_a_look_that_fails_is_repeated_as_soon_as_one_that_found_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake: Any = Fake()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    keeper = Keeper(fake, Place("project", "zone", "bucket"), lambda _: None)
    keeper.enforcer = keeper.recovery = fake
    keeper.keep()
    first, second = fake.waits
    assert second == 10 < first
