"""Scenarios that are shipped and those that are made up are such as the local cloud takes."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from localcloud.scenario import KINDS, read
from tpustack.chaos import place, soak
from tpustack.project import root

SHIPPED = sorted((root() / "docs" / "chaos").glob("*.yaml"))
PAGE = (root() / "docs" / "chaos.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.name)
def test_a_shipped_scenario_is_in_the_page_and_waits_for_steps_that_the_job_has(
    path: Path,
) -> None:
    assert f"(chaos/{path.name})" in PAGE
    assert all(key.startswith("tpu-stack:") for key in place.wanted(path))
    for event in read(path):
        assert event.serial is not None
        machine, says = event.serial
        assert machine == soak.VM
        assert int(says.removeprefix("progress step=").removesuffix("\\d/")) < 20


def test_the_page_has_every_fault() -> None:
    assert [kind for kind in KINDS if f"| `{kind}: " not in PAGE] == []


@pytest.mark.parametrize("seed", range(5))
def test_faults_by_chance_are_a_scenario_whose_last_comes_before_the_jobs_end(
    seed: int, tmp_path: Path
) -> None:
    path = tmp_path / "soak.yaml"
    path.write_text(json.dumps(soak.scenario(200, seed)), encoding="utf-8")
    events = read(path)
    assert len(events) == 200
    for number, event in enumerate(events, 1):
        assert event.serial == (soak.VM, f"progress step={number}\\d/")
        assert number * 10 + 10 < soak.steps_for(200)


def test_the_same_seed_makes_the_same_faults_and_another_makes_others() -> None:
    assert soak.scenario(20, 3) == soak.scenario(20, 3)
    assert soak.scenario(20, 3) != soak.scenario(20, 4)


def test_every_kind_comes_in_a_long_soak() -> None:
    events = [event for seed in range(5) for event in soak.scenario(200, seed)["events"]]
    found = Counter(kind for event in events for kind in event if kind in KINDS)
    never = {"dead", "quota", "clock"}
    assert found.keys() == KINDS.keys() - never
    assert yaml.safe_load(json.dumps(events)) == events
