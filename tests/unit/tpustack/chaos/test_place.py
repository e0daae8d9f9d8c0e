"""The job has as many steps as it is asked for."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tpustack.chaos import place


@pytest.mark.parametrize("examples", [360, 1437, 60_000])
def test_the_trainer_that_drops_part_of_a_step_does_all(examples: int, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    manifest = {"splits": {"train": {"examples": examples}}}
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    for steps in range(20, 3000, 7):
        [epochs] = [text for text in place.arguments(steps, tmp_path) if "--epochs" in text]
        passed = float(epochs.partition("=")[2]) * examples
        # As tpu_training.loop.state.total_steps counts them.
        assert math.floor(passed / place.BATCH) == steps
