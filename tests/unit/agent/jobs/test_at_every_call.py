"""A fault at every call of one machine while another acts: each job ends once, and rightly."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.examples import examples
from tests.unit.agent.jobs.faults import FAULTS, Fault, Scene

RUNS = {"good": (2.0, 0), "bad": (30.0, 1)}
"""Long enough for another machine to find it running, and to end it."""


def played(disk: Path, faults: dict[int, Fault]) -> Scene:
    scene = Scene(disk, faults, RUNS)
    scene.play()
    scene.check()
    shutil.rmtree(disk)
    return scene


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_strikes_at_whichever_call_each_job_ends_once(name: str, tmp_path: Path) -> None:
    calm = played(tmp_path / "calm", {})
    # Each call, or each tenth in `make unit`.
    for moment in range(1, calm.moments + 1, 10 // examples(10)):
        played(tmp_path / str(moment), {moment: FAULTS[name]})


@pytest.mark.parametrize("name", FAULTS)
def test_whatever_strikes_at_each_third_call_of_a_while(name: str, tmp_path: Path) -> None:
    for first in range(1, 4):
        faults = dict.fromkeys(range(first, 60, 3), FAULTS[name])
        played(tmp_path / str(first), faults)
