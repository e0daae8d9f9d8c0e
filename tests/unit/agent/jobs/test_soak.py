"""A thousand faults by chance: each job still ends once, with its own result and its whole log."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from tests.examples import examples
from tests.unit.agent.jobs.faults import FAULTS, Scene

CHANCE, MOST_MOMENTS = 0.04, 20_000


@pytest.mark.slow
def test_a_thousand_faults_by_chance_change_no_result(tmp_path: Path) -> None:
    struck = seed = 0
    while struck < examples(1000):
        chance = Random(seed)
        faults = {
            moment: chance.choice(list(FAULTS.values()))
            for moment in range(MOST_MOMENTS)
            if chance.random() < CHANCE
        }
        runs = {f"job-{n}": (chance.uniform(0.0, 40.0), chance.choice((0, 1))) for n in range(6)}
        scene = Scene(tmp_path / str(seed), faults, runs)
        scene.play()
        scene.check()
        shutil.rmtree(tmp_path / str(seed))
        struck += sum(moment <= scene.moments for moment in faults)
        seed += 1
