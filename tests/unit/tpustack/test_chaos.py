"""What `make chaos` plays, what it runs on, and what it calls a good end."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from localcloud.scenario import KINDS, read
from tests import chaos
from tests.chaos import Happening, Outcome, Timeline
from tpustack.errors import UsageError
from tpustack.logs.serial import Progress
from tpustack.project import root

SHIPPED = sorted((root() / "docs" / "chaos").glob("*.yaml"))
PAGE = (root() / "docs" / "capacity.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_scenario_is_in_the_page_and_waits_for_steps_that_the_job_has(
    path: Path,
) -> None:
    assert f"(chaos/{path.name})" in PAGE
    assert all(key.startswith("tpu-stack:") for key in chaos.stack_settings(path))
    for event in read(path):
        assert event.serial is not None
        machine, says = event.serial
        assert machine == chaos.VM
        assert int(says.removeprefix("progress step=").removesuffix("\\d/")) < 20


def test_the_page_has_every_fault() -> None:
    assert [kind for kind in KINDS if f"| `{kind}: " not in PAGE] == []


@pytest.mark.parametrize("seed", range(5))
def test_faults_by_chance_are_a_scenario_whose_last_comes_before_the_jobs_end(
    seed: int, tmp_path: Path
) -> None:
    path = tmp_path / "soak.yaml"
    path.write_text(json.dumps(chaos.random_scenario(200, seed)), encoding="utf-8")
    events = read(path)
    assert len(events) == 200
    for number, event in enumerate(events, 1):
        assert event.serial == (chaos.VM, f"progress step={number}\\d/")
        assert number * 10 + 10 < chaos.steps_for(200)


def test_the_same_seed_makes_the_same_faults_and_another_makes_others() -> None:
    assert chaos.random_scenario(20, 3) == chaos.random_scenario(20, 3)
    assert chaos.random_scenario(20, 3) != chaos.random_scenario(20, 4)


def test_every_kind_comes_in_a_long_soak() -> None:
    events = [event for seed in range(5) for event in chaos.random_scenario(200, seed)["events"]]
    found = Counter(kind for event in events for kind in event if kind in KINDS)
    never = {"dead", "quota", "clock"}
    assert found.keys() == KINDS.keys() - never
    assert yaml.safe_load(json.dumps(events)) == events


@pytest.mark.parametrize("examples", [360, 1437, 60_000])
def test_the_trainer_that_drops_part_of_a_step_does_all(examples: int, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    manifest = {"splits": {"train": {"examples": examples}}}
    (tmp_path / "data" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    for steps in range(20, 3000, 7):
        [epochs] = [text for text in chaos.trainer_arguments(steps, tmp_path) if "--epochs" in text]
        passed = float(epochs.partition("=")[2]) * examples
        # As tpu_training.data.manifest.Manifest.steps counts them.
        assert math.floor(passed / chaos.BATCH) == steps


def scenario(folder: Path, stack: object) -> Path:
    path = folder / "scenario.yaml"
    path.write_text(json.dumps({"x-stack": stack, "events": []}), encoding="utf-8")
    return path


def test_a_scenario_names_settings_of_its_stack(tmp_path: Path) -> None:
    tpu = {"acceleratorType": "v2-8", "runtimeVersion": "tpu-vm-tf-2.19.0-pod-pjrt"}
    assert chaos.stack_settings(scenario(tmp_path, {"tpu": tpu})) == {"tpu-stack:tpu": tpu}
    assert chaos.stack_settings(scenario(tmp_path, {})) == {}


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
        chaos.stack_settings(path)
    assert str(refused.value).startswith(f"{path}: x-stack:")
    assert said in str(refused.value)


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
def test_each_thing_wrong_with_a_run_is_named(change: dict[str, Any], said: str) -> None:
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
    timeline.note(Progress(30, 30, {}))
    assert timeline.steps[-1][1] == 30
