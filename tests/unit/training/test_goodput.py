"""Every second of a job has one state, over all of its starts, machines and TPUs."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tpu_core.ledger import (
    FINISHED,
    PARTS,
    TPU_STATES,
    Entry,
    File,
    parse_entry,
    parse_tpus,
    read,
)
from tpu_training.goodput.account import STATES, Account, account, timeline

pytestmark = pytest.mark.training

PREEMPTED = "PREEMPTED"


def entry(begin: float, first: int, last: int, duration: float = 100.0, **seconds: float) -> Entry:
    return Entry(begin, duration, first, last, dict.fromkeys(PARTS, 0.0) | seconds, "vm")


def ended(one: Entry, ending: str = FINISHED) -> Entry:
    return replace(one, ending=ending)


def tpus(seen: float, *events: tuple[float, str, str], tpu: str = "t") -> File:
    """What an agent wrote until `seen`: (at, state, cause)."""
    listed = [{"at": at, "tpu": tpu, "state": state, "cause": why} for at, state, why in events]
    text = json.dumps({"format": 1, "machine": "vm", "seen": seen, "events": listed})
    return File(f"gs://b/j/ledger/tpus-{seen}-{tpu}.json", text)


def files(*entries: Entry) -> list[File]:
    return [File(f"gs://b/j/ledger/{n:04}.json", one.to_json()) for n, one in enumerate(entries)]


def of(*entries: Entry, agent: tuple[File, ...] = ()) -> Account:
    return account(read([*files(*entries), *agent]))


def spent(total: Account) -> dict[str, float]:
    return {state: round(seconds, 3) for state, seconds in total.seconds.items() if seconds}


def test_the_seconds_of_one_start_are_those_that_it_measured_and_the_rest_before() -> None:
    before = {"load": 5.0, "connect": 2.0, "restore": 1.0, "start": 20.0}
    loops = {"compute": 60.0, "input": 3.0, "checkpoint": 1.0, "evaluate": 1.0, "idle": 2.0}
    found = of(entry(0.0, 0, 50, **before, **loops))
    assert found.wall == 100.0
    assert spent(found) == {
        "step": 60,
        "input": 3,
        "checkpoint": 1,
        "evaluating": 1,
        "between": 2,
        "loading": 5,
        "initialising": 8,
        "compiling": 20,
    }
    assert found.goodput == 0.6


def test_steps_that_are_done_again_are_lost_and_so_is_the_time_between_two_starts() -> None:
    found = of(entry(150.0, 40, 90, compute=50), entry(0.0, 0, 50, compute=50))
    assert spent(found) == {"lost": 10, "step": 90, "away": 50, "initialising": 100}
    assert (found.starts, found.steps, found.lost_steps, found.wall) == (2, 90, 10, 250.0)


def test_a_start_that_goes_back_behind_several_others_loses_their_steps_too() -> None:
    parts = {"compute": 100.0}
    found = of(entry(0, 0, 50, **parts), entry(100, 40, 90, **parts), entry(200, 30, 100, **parts))
    assert (found.steps, found.lost_steps) == (100, 20 + 50)
    assert found.seconds["lost"] == 40 + 100


def test_a_killed_start_did_the_steps_that_the_next_one_did_not_repeat() -> None:
    killed = entry(0.0, 0, 20, compute=40.0, load=60.0)
    found = of(killed, entry(120.0, 50, 100, compute=50.0, load=50.0))
    assert (found.steps, found.lost_steps) == (100, 0)


def test_what_became_of_the_tpu_says_what_the_time_without_a_trainer_was() -> None:
    agent = tpus(
        1000.0,
        (-300.0 + 1000, "ready", ""),
        *[(at, state, PREEMPTED) for at, state in ((200.0, "recovering"), (300.0, "provisioning"))],
        *[(0.0, "ready", ""), (50.0, "queued", "WAITING"), (80.0, "ready", "")],
    )
    first = entry(90.0, 0, 50, duration=110, compute=100)
    found = of(first, ended(entry(710.0, 40, 90, compute=100)), agent=(agent,))
    assert spent(found) == {
        "idle": 50 + 10 + 10,
        "queued": 30,
        "initialising": 10,
        "step": 180,
        "lost": 20,
        "recovering": 100,
        "provisioning": 400,
    }
    assert found.tpus == {"t": {"queued": 30, "recovering": 100, "provisioning": 400, "ready": 470}}
    assert found.causes == {PREEMPTED: 20 + 100 + 400 + 10, "WAITING": 50 + 30 + 10 + 10}


def test_a_trainer_that_waits_for_a_tpu_waits_for_what_the_agent_saw() -> None:
    agent = tpus(100.0, (0.0, "provisioning", ""), (60.0, "ready", ""))
    found = of(entry(0.0, 0, 5, wait=65, compute=30, load=5), agent=(agent,))
    assert spent(found) == {"provisioning": 60, "initialising": 5, "loading": 5, "step": 30}


def test_of_several_slices_the_one_that_is_missing_counts() -> None:
    one = tpus(300.0, (0.0, "ready", ""))
    other = tpus(300.0, (0.0, "ready", ""), (100.0, "stopped", ""), (150.0, "ready", ""), tpu="u")
    found = of(entry(0, 0, 1), ended(entry(200, 1, 2)), agent=(one, other))
    assert spent(found) == {"initialising": 200, "stopped": 50, "idle": 50}


def test_a_job_that_waits_now_is_charged_and_a_finished_or_a_running_one_is_not() -> None:
    lost = tpus(1000.0, (100.0, "recovering", PREEMPTED))
    assert spent(of(entry(0, 0, 9, compute=100), agent=(lost,)))["recovering"] == 900
    assert "recovering" not in spent(of(ended(entry(0, 0, 9)), agent=(lost,)))
    runs = tpus(160.0, (0.0, "ready", ""))
    assert of(entry(0, 0, 9), agent=(runs,)).wall == 100.0


def test_after_an_agent_died_the_state_of_its_tpus_is_unknown() -> None:
    before, after = tpus(200.0, (0.0, "ready", "")), tpus(9000.0, (8000.0, "ready", ""))
    found = of(entry(0, 0, 9), ended(entry(8100, 9, 10)), agent=(before, after))
    assert spent(found) == {"initialising": 200, "idle": 100 + 100, "away": 7800}


def test_an_agent_that_is_restarted_continues_where_it_was() -> None:
    before, after = tpus(200.0, (100.0, "recovering", "x")), tpus(600.0, (500.0, "ready", ""))
    found = of(entry(0, 0, 9), ended(entry(550, 9, 10)), agent=(before, after))
    assert spent(found) == {"initialising": 200, "recovering": 400, "idle": 50}


def test_clocks_that_disagree_make_no_negative_time_and_are_told() -> None:
    ledger = read(files(entry(0.0, 0, 50, compute=50), entry(90.0, 50, 90, compute=50)))
    assert account(ledger).seconds["away"] == 0.0
    assert account(ledger).wall == 200.0
    assert ledger.problems == [
        "starts overlap by 10 s: clocks disagree, so each counts from the end of the one before"
    ]


def by_chance(chance: random.Random) -> list[File]:
    """A ledger as a job of thirty starts may leave it, or as garbage has made it."""
    entries, events, now, step = [], [], 1000.0, 0
    for _ in range(30):
        duration, first = chance.uniform(1, 1e4), chance.randint(0, step)
        parts = {part: duration * chance.random() * 1.2 / len(PARTS) for part in PARTS}
        step = first + chance.randint(0, 500)
        ending = chance.choice(["", "received SIGTERM"])
        entries.append(ended(entry(now, first, step, duration, **parts), ending))
        now += duration + chance.uniform(-200, 500)
    for _ in range(60):
        events.append((chance.uniform(0, now + 500), chance.choice(TPU_STATES), "why"))
    agents = [tpus(max(event[0] for event in events), *events, tpu=tpu) for tpu in ("t", "u")]
    return [*files(*entries), *agents]


@pytest.mark.parametrize("seed", range(40))
def test_the_states_and_the_causes_add_up_to_the_wall_time_whatever_happened(seed: int) -> None:
    ledger = read(by_chance(random.Random(seed)))
    segments, found = timeline(ledger), account(ledger)
    assert found.wall == pytest.approx(segments[-1].end - segments[0].begin)
    assert sum(found.causes.values()) + found.seconds["step"] == pytest.approx(found.wall)
    for one, following in pairwise(segments):
        assert one.end == pytest.approx(following.begin)
        assert sum(one.seconds.values()) == pytest.approx(one.end - one.begin)
    assert all(seconds >= 0 for seconds in found.seconds.values())
    assert set(found.seconds) == {state for state, _ in STATES}
    done = sum(one.last_step - one.first_step for one in ledger.entries)
    assert found.steps + found.lost_steps == done


def test_nothing_is_accounted_for_as_nothing() -> None:
    assert (of().wall, of().goodput) == (0.0, 0.0)


DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "[]",
        "3",
        DEEP,
        '{"begin": 1}',
        '{"begin": 1, "duration": 1, "first_step": 0, "last_step": 0, "seconds": []}',
        entry(1.0, 5, 4).to_json(),
        entry(-1.0, 0, 4).to_json(),
        entry(1.0, 0, 4, duration=float("nan")).to_json(),
        entry(1.0, 0, 4, duration=float("inf")).to_json(),
    ],
)
def test_garbage_is_no_entry(garbage: str) -> None:
    assert parse_entry(garbage) is None


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "[]",
        DEEP,
        '{"format": 1, "machine": "m", "seen": 1}',
        '{"format": 1, "machine": "m", "seen": 1, "events": [3]}',
        '{"format": 1, "machine": "m", "seen": 1, "events": {"a": 1}}',
        tpus(5.0, (1.0, "enchanted", "")).text,
        tpus(float("nan"), (1.0, "ready", "")).text,
    ],
)
def test_garbage_says_nothing_of_tpus(garbage: str) -> None:
    assert parse_tpus(garbage) is None
    assert read([File("j/ledger/tpus-1.json", garbage)]).broken == ["j/ledger/tpus-1.json"]


def test_an_entry_is_read_as_it_was_written() -> None:
    one = ended(entry(12.5, 3, 4, compute=1.5), "received SIGTERM")
    assert parse_entry(one.to_json()) == one


@pytest.mark.parametrize("other", [None, 0, 2, "1"])
def test_what_is_of_another_format_is_garbage(other: object) -> None:
    for text in (entry(1.0, 0, 4).to_json(), tpus(9.0, (1.0, "ready", "")).text):
        content: dict[str, Any] = json.loads(text)
        assert parse_entry(text) or parse_tpus(text)
        changed = json.dumps(content | {"format": other})
        assert (parse_entry(changed), parse_tpus(changed)) == (None, None)
