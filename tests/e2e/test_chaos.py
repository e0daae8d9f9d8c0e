"""A short soak, and a scenario that can't be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE
from tpustack import project

# A kill of the trainer, one of the agent, a preemption, a stock-out, and errors of the bucket.
SOAK = ("--soak=20", "--seed=146")


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", *arguments],
        cwd=project.root(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_a_wrong_scenario_starts_nothing(tmp_path: Path) -> None:
    scenario = tmp_path / "wrong.yaml"
    scenario.write_text("events: [{at: -1, premept: x}]\n", encoding="utf-8")
    done = chaos(str(scenario), "--folder", str(tmp_path / "chaos"))
    assert done.returncode == 2
    assert "'premept'. Known: preempt, " in done.stderr
    assert not (tmp_path / "chaos").exists()


@pytest.mark.soak
def test_a_job_lives_through_twenty_faults_as_if_there_were_none(tmp_path: Path) -> None:
    """All its steps, the same loss to the bit, a whole ledger, and nothing that is left over."""
    done = chaos(*SOAK, "--folder", str(tmp_path / "chaos"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    told = json.loads((tmp_path / "chaos.json").read_text(encoding="utf-8"))
    assert (told["steps"], told["faults"], told["problems"]) == (230, 20, [])
    assert told["loss"] == told["undisturbed"] is not None
    assert told["starts"] >= 3
