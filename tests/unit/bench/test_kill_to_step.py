"""The parts of the time from a kill to the next step are all of it."""

from __future__ import annotations

import pytest

from bench.recovery import parts_of, sum_of

STATES = {"PREEMPTED": 100.0, "DELETING": 104.0, "gone": 105.0, "CREATING": 107.0, "READY": 120.0}


@pytest.mark.parametrize(
    "left_out", [(), ("gone",), ("DELETING",), ("gone", "DELETING", "CREATING")]
)
def test_they_add_up_whichever_states_were_seen(left_out: tuple[str, ...]) -> None:
    parts = parts_of({s: at for s, at in STATES.items() if s not in left_out}, 135.0)
    assert sum(parts.values()) == pytest.approx(35.0)
    assert all(seconds >= 0 for seconds in parts.values())


def test_what_the_cloud_takes_is_no_part_of_the_sum() -> None:
    parts = parts_of(STATES, 125.0)
    assert parts["(cloud) creation, with the worker's start"] == 13.0
    assert sum_of(parts) == 4 + 2 + 5
