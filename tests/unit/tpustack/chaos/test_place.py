"""The job has as many steps as it is asked for."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tpustack.chaos import place
from tpustack.errors import UsageError


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


def scenario(folder: Path, stack: object) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(json.dumps({"x-stack": stack, "events": []}), encoding="utf-8")
    return path


def test_a_scenario_names_settings_of_its_stack(tmp_path: Path) -> None:
    tpu = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
    assert place.wanted(scenario(tmp_path, {"tpu": tpu})) == {"tpu-stack:tpu": tpu}
    assert place.wanted(scenario(tmp_path, {})) == {}


@pytest.mark.parametrize(
    ("stack", "said"),
    [
        (["tpu"], "x-stack: expected settings by their names, not ['tpu']"),
        ({"vm": {}, "training": {}}, "x-stack: training, vm: set by the run itself; remove it"),
        ({"zone": "us-central1-b", "tpus": {}}, "- tpus: {} "),
        ({"tpu": {"acceleratorType": "v2-9"}}, '- tpu.acceleratorType: "v2-9" '),
    ],
)
def test_wrong_settings_of_a_scenario_are_refused_before_anything_starts(
    tmp_path: Path, stack: object, said: str
) -> None:
    path = scenario(tmp_path, stack)
    with pytest.raises(UsageError) as refused:
        place.wanted(path)
    assert str(refused.value).startswith(f"{path}: x-stack:")
    assert said in str(refused.value)
