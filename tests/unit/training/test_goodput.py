"""Every second of a job has one state, over all of its starts."""

from __future__ import annotations

import random

import pytest

from tpu_training.goodput.account import account
from tpu_training.goodput.entry import PARTS, Entry, parse
from tpu_training.loop.callbacks import LoopReport
from tpu_training.monitoring.ledger import Ledger
from tpu_training.monitoring.step_times import StepTimes

pytestmark = pytest.mark.training


def entry(begin: float, first: int, last: int, duration: float = 100.0, **seconds: float) -> Entry:
    return Entry(begin, duration, first, last, dict.fromkeys(PARTS, 0.0) | seconds)


def test_the_seconds_of_one_start_are_those_that_it_measured_and_the_rest_before() -> None:
    found = account(
        [entry(0.0, 0, 50, load=5, start=20, compute=60, input=4, checkpoint=1, idle=2)]
    )
    assert found.wall == 100.0
    assert found.seconds == {
        "step": 60,
        "input": 4,
        "checkpoint": 1,
        "between": 2,
        "lost": 0,
        "loading": 5,
        "initialising": 8,
        "compiling": 20,
        "away": 0,
    }
    assert found.goodput == 0.6


def test_steps_that_are_done_again_are_lost_and_so_is_the_time_between_two_starts() -> None:
    found = account([entry(150.0, 40, 90, compute=50), entry(0.0, 0, 50, compute=50)])
    assert found.seconds["lost"] == 10.0
    assert found.seconds["step"] == 90.0
    assert found.seconds["away"] == 50.0
    assert (found.starts, found.steps, found.lost_steps, found.wall) == (2, 90, 10, 250.0)


def test_clocks_that_disagree_make_no_negative_time() -> None:
    found = account([entry(0.0, 0, 50, compute=50), entry(90.0, 50, 90, compute=50)])
    assert found.seconds["away"] == 0.0
    assert found.wall == 200.0


@pytest.mark.parametrize("seed", range(20))
def test_the_states_add_up_to_the_wall_time_whatever_happened(seed: int) -> None:
    chance, entries, now, step = random.Random(seed), [], 0.0, 0
    for _ in range(30):
        duration, first = chance.uniform(1, 1e4), chance.randint(0, step)
        parts = {part: duration * chance.random() / len(PARTS) for part in PARTS}
        step = first + chance.randint(0, 500)
        entries.append(entry(now, first, step, duration, **parts))
        now += duration + chance.uniform(0, 500)
    found = account(entries)
    last = entries[-1]
    assert found.wall == pytest.approx(last.begin + last.duration)
    assert all(seconds >= 0 for seconds in found.seconds.values())


def test_nothing_is_accounted_for_as_nothing() -> None:
    assert (account([]).wall, account([]).goodput) == (0.0, 0.0)


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "[]",
        '{"begin": 1}',
        entry(1.0, 5, 4).to_json(),
        entry(-1.0, 0, 4).to_json(),
        entry(1.0, 0, 4, duration=float("nan")).to_json(),
    ],
)
def test_garbage_is_no_entry(garbage: str) -> None:
    assert parse(garbage) is None


def test_an_entry_is_read_as_it_was_written() -> None:
    one = entry(12.5, 3, 4, compute=1.5)
    assert parse(one.to_json()) == one


class Silent:
    """Summaries that nobody looks at."""

    def scalars(self, *_: object) -> None:
        pass


def test_a_start_writes_its_entry_at_its_begin_each_minute_and_at_its_end() -> None:
    now, written = 100.0, {}
    writes = 0

    def write(path: str, text: str) -> None:
        nonlocal writes
        written[path] = text
        writes += 1

    times = StepTimes(Silent(), 4.0, lambda: now)  # type: ignore[arg-type]
    ledger = Ledger("gs://bucket/job/", times, 90.0, lambda: now, write)
    for callback in (times, ledger):
        callback.start(20)
    for step in range(21, 221):
        now += 1.0
        report = LoopReport(step, 300, 1, 0.5, {}, 0.1, 1.0, 0.0)
        for callback in (times, ledger):
            callback.between_loops(step, report)
    ledger.close()
    assert writes == 1 + 3 + 1
    ((path, text),) = written.items()
    assert path.startswith("gs://bucket/job/ledger/2")
    found = parse(text)
    assert found
    assert (found.first_step, found.last_step, found.duration) == (20, 220, 210.0)
    assert found.seconds["compute"] == 199.0


def test_an_entry_that_cannot_be_written_does_not_end_the_training() -> None:
    def full(path: str, text: str) -> None:
        raise OSError("disk full")

    times = StepTimes(Silent())  # type: ignore[arg-type]
    Ledger("folder", times, 0.0, write=full).start(0)
