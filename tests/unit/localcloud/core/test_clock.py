from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from localcloud.core.clock import Clock, VirtualClock, rfc3339


def test_virtual_time_runs_what_falls_due_in_order_and_at_its_time() -> None:
    clock = VirtualClock(100.0)
    seen: list[tuple[float, float]] = []
    for when in (130.0, 110.0, 120.0):
        clock.at(when, partial(lambda due: seen.append((due, clock.now())), when))
    clock.advance(25)
    assert seen == [(110.0, 110.0), (120.0, 120.0)]
    assert clock.now() == 125.0
    clock.advance(5)
    assert seen[-1] == (130.0, 130.0)


def test_an_action_may_put_off_another() -> None:
    clock, seen = VirtualClock(0.0), []

    def tick() -> None:
        seen.append(clock.now())
        clock.at(clock.now() + 10, tick)

    clock.at(10, tick)
    clock.advance(35)
    assert seen == [10, 20, 30]


def test_an_action_that_fails_does_not_keep_the_next_from_running(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, seen = VirtualClock(0.0), []
    clock.at(1, lambda: 1 / 0)
    clock.at(2, lambda: seen.append(2))
    clock.advance(3)
    assert seen == [2]
    assert "ZeroDivisionError" in caplog.text


def test_a_slow_action_does_not_delay_others_on_the_wall_clock() -> None:
    clock = Clock()
    release, done = threading.Event(), threading.Event()
    clock.at(clock.now(), lambda: release.wait(20))
    clock.at(clock.now() + 0.01, done.set)
    assert done.wait(20)
    release.set()
    clock.close()


def test_setting_the_clock_ahead_runs_what_becomes_due() -> None:
    clock, done, later = Clock(), threading.Event(), threading.Event()
    clock.at(clock.now() + 3600, done.set)
    clock.at(clock.now() + 7200, later.set)
    before = clock.now()
    clock.forward(3600)
    assert clock.now() >= before + 3600
    assert done.wait(20)
    assert not later.is_set()
    clock.close()


def test_an_earlier_action_overtakes_one_that_is_waited_for() -> None:
    clock, done = Clock(), threading.Event()
    clock.at(clock.now() + 3600, lambda: None)
    clock.at(clock.now() + 0.01, done.set)
    assert done.wait(20)
    clock.close()


def test_a_closed_clock_forgets() -> None:
    clock, seen = Clock(), []
    clock.at(clock.now() + 0.2, lambda: seen.append(1))
    clock.close()
    time.sleep(0.4)
    assert seen == []


def test_times_are_printed_as_google_prints_them() -> None:
    assert rfc3339(1_790_000_000.1239) == "2026-09-21T14:13:20.123Z"
