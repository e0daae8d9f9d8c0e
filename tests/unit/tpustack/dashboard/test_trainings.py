"""Goodput, cost and curves: from the files of a training to what the page draws."""

from __future__ import annotations

import math
import struct
from typing import Any

import pytest
from hypothesis import given, strategies as st
from starlette.testclient import TestClient

from tests.unit.tpustack.dashboard.conftest import BUCKET
from tpu_agent.jobs.queue import Queue
from tpu_core.ledger import PARTS, Entry, File, read
from tpu_infra.catalog import Catalog
from tpu_infra.cost import of_stack
from tpu_infra.settings.parse import parse
from tpu_training.goodput.account import Segment
from tpustack.cloud.google import Google
from tpustack.dashboard.sources import Place, Trainings, by_day, points, thinned, training

DAY = 86400.0
NOON = 20_000 * DAY + DAY / 2
SETTINGS = parse({"gcp:project": "p", "tpu-stack:zone": "us-central1-b"}, "dev")
ESTIMATE = of_stack(SETTINGS, "dev", Catalog())


def entry(begin: float, hours: float, ending: str = "finished") -> Entry:
    """A start that did nothing but steps."""
    seconds = dict.fromkeys(PARTS, 0.0) | {"compute": hours * 3600}
    return Entry(begin, hours * 3600, 0, 100, seconds, "vm", ending)


def varint(value: int) -> bytes:
    head = b""
    while value >= 128:
        head, value = head + bytes([value & 127 | 128]), value >> 7
    return head + bytes([value])


def field(number: int, content: bytes | int) -> bytes:
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    return varint(number << 3 | 2) + varint(len(content)) + content


def event(step: int, tag: str, value: float) -> bytes:
    """An event with one number, as TensorFlow 2 writes it."""
    return written(step, tag, field(8, field(1, 1) + field(4, struct.pack("<f", value))))


def written(step: int, tag: str, value: bytes) -> bytes:
    message = field(2, step) + field(5, field(1, field(1, tag.encode()) + value))
    return struct.pack("<Q", len(message)) + bytes(4) + message + bytes(4)


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


def test_the_curves_of_all_starts_are_one_and_the_later_start_counts(
    page: TestClient, queue: Queue
) -> None:
    folder = "jobs/runs/model"
    first = event(1, "train/loss", 2.0) + event(2, "train/loss", 1.5)
    queue.store.write(f"{folder}/events.out.tfevents.1.vm", first)
    queue.store.write(f"{folder}/events.out.tfevents.2.vm", event(2, "train/loss", 1.25))
    queue.store.write(f"{folder}/checkpoint", b"something else")
    answer = page.get(f"/api/places/{BUCKET}/curves", params={"training": folder})
    assert answer.json() == {"train/loss": [[1, 2.0], [2, 1.25]]}


numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(st.integers(0, 2**40), st.text(min_size=1, max_size=9), numbers)))
def test_every_number_of_a_file_is_read(written: list[tuple[int, str, float]]) -> None:
    data = b"".join(event(*each) for each in written)
    assert list(points(data)) == [(tag, step, value) for step, tag, value in written]


def test_a_number_is_read_in_every_form_that_writers_use() -> None:
    forms = {
        "TensorFlow 1's": b"\x15" + struct.pack("<f", 0.5),
        "floats": field(8, field(1, 1) + field(5, struct.pack("<f", 0.5))),
        "doubles": field(8, field(1, 2) + field(6, struct.pack("<d", 0.5))),
        "two": field(8, field(1, 1) + field(5, struct.pack("<2f", 0.5, 0.5))),
        "a whole number": field(8, field(1, 3) + field(4, bytes(4))),
        "a histogram": field(5, b""),
    }
    data = b"".join(written(1, *form) for form in forms.items())
    assert list(points(data)) == [(tag, 1, 0.5) for tag in ("TensorFlow 1's", "floats", "doubles")]


@given(st.binary(max_size=200), st.integers(0, 60))
def test_garbage_and_half_a_file_end_it_without_an_error(garbage: bytes, cut: int) -> None:
    list(points(garbage))
    list(points(struct.pack("<Q", len(garbage)) + bytes(4) + garbage + bytes(4)))
    whole = event(7, "loss", 1.0)
    assert list(points(whole + whole[: min(cut, len(whole) - 1)])) == [("loss", 7, 1.0)]


@given(st.lists(numbers, min_size=1, max_size=3000))
def test_a_thinned_curve_keeps_its_ends_and_its_peaks(values: list[float]) -> None:
    curve = list(enumerate(values))
    kept: Any = thinned(curve)
    assert len(kept) <= 300
    assert (kept[0], kept[-1]) == (curve[0], curve[-1])
    assert {min(values), max(values)} <= {value for _, value in kept}
    assert kept == sorted(set(kept))
