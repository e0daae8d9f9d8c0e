"""A run is good only if nothing is wrong with it, and each thing that is wrong is said."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tpustack.chaos.outcome import Outcome
from tpustack.chaos.timeline import Happening, Timeline
from tpustack.logs.words import Progress

GOOD = Outcome(200, steps=200, loss=0.5, undisturbed=0.5, changes=0, resources={}, processes=0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"steps": 190}, "the job did 190 steps, not 200"),
        ({"steps": None}, "the job did None steps"),
        ({"missed": ["preempt x (never)"]}, "not every fault could be put in force: preempt x"),
        ({"changes": 1}, "changes 1 resources"),
        ({"resources": {"buckets": 1}}, "resources are left: {'buckets': 1}"),
        ({"processes": 2}, "2 processes are left"),
        ({"ledger": ["f is garbage"]}, "the ledger: f is garbage"),
        ({"undisturbed": 0.5000001}, "the loss is 0.5, that of an undisturbed job 0.5000001"),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str) -> None:
    assert GOOD.problems() == []
    assert replace(GOOD, undisturbed=None).problems() == []
    [problem] = replace(GOOD, **change).problems()
    assert said in problem


def test_an_event_stands_beside_the_step_before_it_and_the_time_to_the_next() -> None:
    timeline = Timeline()
    timeline.steps = [(1.0, 10), (3.0, 20)]
    timeline.happenings = [
        Happening(0.5, "fails", "dead x"),
        Happening(2.0, "happens", "preempt x"),
        Happening(4.0, "ends", "hang x"),
    ]
    columns = [list(column.cells) for column in timeline.table().columns]
    assert columns[1] == ["–", "10", "20"]
    assert columns[4] == ["0.5 s", "1.0 s", "–"]
    assert (timeline.faults(), [each.event for each in timeline.missed()]) == (1, ["dead x"])
    timeline.clock = 1000.0
    assert timeline.moments() == [1002.0]
    timeline.note(Progress(30, 30, {}))
    assert timeline.steps[-1][1] == 30
