"""`tpustack goodput` shows where a job's time went."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.tpustack.conftest import Run
from tpu_training.goodput.entry import PARTS, Entry


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A directory with the ledger of two starts, and garbage."""
    folder = tmp_path / "model" / "ledger"
    folder.mkdir(parents=True)
    seconds = dict.fromkeys(PARTS, 0.0) | {"compute": 1800.0, "load": 600.0}
    (folder / "1.json").write_text(Entry(0.0, 3600.0, 0, 100, seconds).to_json())
    (folder / "2.json").write_text(Entry(7200.0, 3600.0, 80, 200, seconds).to_json())
    (folder / "3.json").write_text("{")
    return tmp_path / "model"


def test_the_table_adds_up_and_garbage_is_named(run: Run, model: Path) -> None:
    done = run("goodput", str(model))
    assert done.code == 0
    assert "goodput 30.0%: 200 steps in 2 starts, 20 steps were lost" in done.out
    assert "100.0%" in done.out
    assert "away" in done.out
    assert "3.json is no entry of a ledger; it is left out" in done.err


def test_programs_get_the_same_as_json(run: Run, model: Path) -> None:
    content = json.loads(run("goodput", str(model), "--json").out)
    assert content["wall_seconds"] == sum(content["seconds"].values()) == 10800.0
    assert content["seconds"]["lost"] == 360.0
    assert content["seconds"]["away"] == 3600.0
    assert [Path(name).name for name in content["not_read"]] == ["3.json"]


def test_a_directory_without_a_ledger_is_told(run: Run, tmp_path: Path) -> None:
    done = run("goodput", str(tmp_path))
    assert done.code == 1
    assert "no training has written a ledger there" in done.err


def test_a_stack_and_a_directory_exclude_each_other(run: Run, tmp_path: Path) -> None:
    assert run("goodput", str(tmp_path), "--stack", "dev").code == 2
