"""The parts of the time from a kill to the next step are all of it."""

from __future__ import annotations

import pytest

from bench.recovery import parts_of, sum_of
from tpu_core.ledger import PARTS, Entry

STATES = {"PREEMPTED": 100.0, "DELETING": 104.0, "gone": 105.0, "CREATING": 107.0, "READY": 120.0}


def entry(begin: float, duration: float, **seconds: float) -> Entry:
    return Entry(begin, duration, 10, 10, dict.fromkeys(PARTS, 0.0) | seconds)


@pytest.mark.parametrize("begin", [103.0, 121.0])
@pytest.mark.parametrize(
    "left_out", [(), ("gone",), ("DELETING",), ("gone", "DELETING", "CREATING")]
)
def test_they_add_up_whichever_states_were_seen(begin: float, left_out: tuple[str, ...]) -> None:
    states = {state: at for state, at in STATES.items() if state not in left_out}
    parts = parts_of(
        states, entry(begin, 130 - begin, load=6, wait=121 - begin, connect=1, restore=0.5), 135.0
    )
    assert sum(parts.values()) == pytest.approx(35.0)
    assert all(seconds >= 0 for seconds in parts.values())


def test_what_the_cloud_takes_is_no_part_of_the_sum() -> None:
    parts = parts_of(STATES, entry(103.0, 20.0, load=6.0, wait=12.0, connect=1.0), 125.0)
    assert parts["(cloud) creation, with the worker's start"] == 13.0
    assert sum_of(parts) == 4 + 2 + 5
    assert parts["a trainer starts"] == 0.0
    assert parts["it loads TensorFlow and finds the TPU"] == 1.0
