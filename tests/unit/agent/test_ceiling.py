"""A ceiling of the cost is told once a month, whatever becomes of the agent."""

from __future__ import annotations

import json
from datetime import datetime, timezone

import pytest

from tests.unit.agent.fake_google import FakeClient
from tpu_agent.events import Ceiling
from tpu_core.bucket import Bucket
from tpu_core.contract import Ceiling as Limit
from tpu_core.google import Json

COST: Limit = {"dollars": 10.0, "hour": 6.0, "hourWithoutTpu": 0.6}
HOUR = 3600.0


class World:
    """A bucket of one object, a TPU and a clock."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 2, tzinfo=timezone.utc).timestamp()
        self.stands = True
        self.kept: Json | None = None
        self.told: list[str] = []
        self.aside = 0
        self.agent = self.start()

    def start(self) -> Ceiling:
        bucket = Bucket("b", FakeClient(self.call).send)
        return Ceiling(bucket, lambda: self.stands, lambda: self.now, self.told.append)

    def call(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        if method == "GET":
            return (200, dict(self.kept)) if self.kept is not None else (404, {})
        if "rejected" in url:
            self.aside += "copyTo" in url
            return 200, {}
        self.kept = json.loads(body or "")
        return 200, {}

    def run(self, hours: float, cost: Limit = COST) -> None:
        end = self.now + hours * HOUR
        while self.now < end:
            self.agent.look(cost)
            self.now += 60.0
        self.agent.look(cost)

    @property
    def spent(self) -> float:
        assert self.kept is not None
        return float(self.kept["dollars"])


@pytest.fixture
def world() -> World:
    return World()


def test_a_ceiling_is_told_once_when_it_is_reached(world: World) -> None:
    world.run(1.5)
    assert world.told == []
    world.run(1)
    assert len(world.told) == 1
    assert "have cost $10.00 this month" in world.told[0]
    assert "messages.costDollars is $10. Nothing is stopped" in world.told[0]
    world.agent = world.start()
    world.run(5)
    assert len(world.told) == 1


def test_without_a_tpu_the_machine_alone_costs(world: World) -> None:
    world.stands = False
    world.run(5)
    assert world.spent == pytest.approx(3.0)


def test_another_month_begins_at_nothing_and_is_told_anew(world: World) -> None:
    world.run(3)
    world.now = datetime(2026, 12, 1, tzinfo=timezone.utc).timestamp()
    world.run(1)
    assert world.spent == pytest.approx(8.0)
    world.run(1)
    assert len(world.told) == 2


def test_a_ceiling_that_was_raised_is_told_when_it_is_reached_in_turn(world: World) -> None:
    world.run(2)
    world.run(2, {**COST, "dollars": 20.0})
    assert [text.partition("$")[2][:2] for text in world.told] == ["10", "20"]


def test_a_time_without_the_machine_is_not_counted(world: World) -> None:
    world.run(1)
    world.now += 100 * HOUR
    world.run(0.5)
    assert world.spent < 12


@pytest.mark.parametrize(
    "change", [{"format": 2}, {"dollars": "much"}, {"at": None}, {"told": [1]}, {"more": 1}]
)
def test_a_sum_that_can_not_be_read_is_put_aside_and_stops_no_other(
    world: World, change: Json
) -> None:
    world.run(1)
    assert world.kept is not None
    world.kept |= change
    world.agent = world.start()
    world.run(1)
    assert world.spent == pytest.approx(6.0)
    assert world.aside == 1
