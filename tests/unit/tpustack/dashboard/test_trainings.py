"""Goodput and cost: from the files of a training to what the page shows."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog import Catalog
from infra.cost import of_stack
from infra.settings.parse import parse
from tpu_agent.jobs.queue import Queue
from tpu_training.goodput.account import Segment
from tpu_training.goodput.ledger import PARTS, Entry, File, read
from tpustack.cloud.google import Google
from tpustack.dashboard.sources import Place, Trainings, by_day, training

DAY = 86400.0
NOON = 20_000 * DAY + DAY / 2
SETTINGS = parse({"gcp:project": "p", "tpu-stack:zone": "us-central1-b"}, "dev")
ESTIMATE = of_stack(SETTINGS, "dev", Catalog())


def entry(begin: float, hours: float, ending: str = "finished") -> Entry:
    """A start that did nothing but steps."""
    seconds = dict.fromkeys(PARTS, 0.0) | {"compute": hours * 3600}
    return Entry(begin, hours * 3600, 0, 100, seconds, "vm", ending)


def test_a_training_over_midnight_counts_on_both_days() -> None:
    ledger = read([File("a.json", entry(NOON, 18).to_json())])
    found = training("jobs/a", ledger, ESTIMATE)
    days = found["days"]
    assert [day["wall"] / 3600 for day in days] == pytest.approx([6, 12])
    assert days[0]["day"] > days[1]["day"]
    assert found["goodput"] == pytest.approx(1)
    assert sum(float(day["cost"]) for day in days) == pytest.approx(float(found["cost"]), abs=1e-4)


def test_without_a_stack_there_are_seconds_and_no_dollars() -> None:
    found = training("jobs/a", read([File("a.json", entry(NOON, 1).to_json())]), None)
    assert (found["cost"], found["days"][0]["cost"]) == (None, None)


spans = st.lists(st.floats(1, 1e6), min_size=1, max_size=6)


@given(spans, st.floats(0, 1e9))
def test_the_days_of_a_time_sum_up_to_it(seconds: list[float], begin: float) -> None:
    segments = []
    for each in seconds:
        segments.append(Segment(begin, begin + each, {"step": each / 4, "away": each * 3 / 4}))
        begin += each
    days = by_day(segments, {"step": 0.0, "away": 0.0})
    for state, part in (("step", 0.25), ("away", 0.75)):
        assert math.isclose(sum(day[state] for day in days.values()), part * sum(seconds))
    assert all(sum(day.values()) <= DAY * 1.001 for day in days.values())
    assert list(days) == sorted(days, reverse=True)


def test_a_ledger_is_read_again_when_it_has_changed(
    queue: Queue, google: Google, place: Place
) -> None:
    path = "jobs/a/model/ledger/1.json"
    queue.store.write(path, entry(NOON, 1).to_json().encode())
    queue.store.write("jobs/broken/ledger/1.json", b"garbage")
    trainings = Trainings(google, place.bucket, None)
    (first,) = trainings.read()
    assert first["folder"] == "jobs/a/model"
    assert trainings.read()[0] is first
    queue.store.write(path, entry(NOON, 2).to_json().encode())
    assert trainings.read()[0]["wall"] == pytest.approx(7200)
