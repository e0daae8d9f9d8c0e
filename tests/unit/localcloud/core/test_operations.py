from __future__ import annotations

from pathlib import Path

import pytest

from localcloud.core import store
from localcloud.core.clock import VirtualClock
from localcloud.core.cloud import Cloud
from localcloud.core.errors import ApiError
from localcloud.core.store import Record


@pytest.fixture(autouse=True)
def effects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects of this module's own, gone after each test."""
    monkeypatch.setattr(store, "_EFFECTS", {})

    @store.effect("test.note")
    def note(cloud: Cloud, text: str) -> dict[str, str]:
        cloud.store.put("note", text, {"at": cloud.clock.now()})
        return {"noted": text}

    @store.effect("test.refuse")
    def refuse(cloud: Cloud) -> None:
        raise ApiError(429, "no room", reason="stockout")

    @store.effect("test.crash")
    def crash(cloud: Cloud) -> None:
        raise RuntimeError("oops")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


def start(cloud: Cloud, effect: str, seconds: float, **arguments: str) -> Record:
    work = store.Work(effect, dict(arguments), seconds)
    return cloud.operations.start("op", work, {"verb": "x"})


def test_without_latency_it_is_done_in_the_first_answer(
    tmp_path: Path, clock: VirtualClock
) -> None:
    cloud = Cloud(tmp_path, clock=clock)
    record = start(cloud, "test.note", 0, text="now")
    assert record["done"]
    assert record["response"] == {"noted": "now"}
    cloud.close()


def test_with_latency_the_effect_comes_when_its_time_has_passed(
    tmp_path: Path, clock: VirtualClock
) -> None:
    cloud = Cloud(tmp_path, clock=clock)
    begun = clock.now()
    assert not start(cloud, "test.note", 60, text="later")["done"]
    clock.advance(59)
    assert cloud.store.get("note", "later") is None
    clock.advance(1)
    assert cloud.store.get("note", "later") == {"at": begun + 60}
    assert cloud.operations.load("op", KeyError())["finished"] == begun + 60
    cloud.close()


@pytest.mark.parametrize("pause", [1.0, 500.0])
def test_pending_operations_survive_a_restart(
    tmp_path: Path, clock: VirtualClock, pause: float
) -> None:
    cloud = Cloud(tmp_path, clock=clock)
    start(cloud, "test.note", 60, text="kept")
    cloud.close()
    later = VirtualClock(clock.now() + pause)
    cloud = Cloud(tmp_path, clock=later)
    cloud.operations.resume()
    later.advance(60)
    assert cloud.store.get("note", "kept") is not None
    assert cloud.operations.load("op", KeyError())["done"]
    cloud.close()


def test_finished_operations_do_not_run_again_after_a_restart(
    tmp_path: Path, clock: VirtualClock
) -> None:
    cloud = Cloud(tmp_path, clock=clock)
    start(cloud, "test.note", 0, text="once")
    cloud.store.delete("note", "once")
    cloud.close()
    cloud = Cloud(tmp_path, clock=clock)
    cloud.operations.resume()
    clock.advance(1000)
    assert cloud.store.get("note", "once") is None
    cloud.close()


def test_an_effect_that_is_refused_is_the_operations_error(
    tmp_path: Path, clock: VirtualClock
) -> None:
    cloud = Cloud(tmp_path, clock=clock)
    record = start(cloud, "test.refuse", 0)
    assert record["done"]
    assert record["error"] == {"code": 8, "message": "no room", "http": 429, "reason": "stockout"}
    cloud.close()


def test_an_effect_that_crashes_is_an_internal_error_and_is_logged(
    tmp_path: Path, clock: VirtualClock, caplog: pytest.LogCaptureFixture
) -> None:
    cloud = Cloud(tmp_path, clock=clock)
    record = start(cloud, "test.crash", 0)
    assert record["error"]["code"] == 13
    assert "RuntimeError: oops" in caplog.text
    cloud.close()
