"""A scenario that can't be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tpustack import project

SECONDS = 120


def chaos(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tpustack", "chaos", *arguments],
        cwd=project.root(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def test_a_wrong_scenario_starts_nothing(tmp_path: Path) -> None:
    scenario = tmp_path / "wrong.yaml"
    scenario.write_text("events: [{at: -1, premept: x}]\n", encoding="utf-8")
    done = chaos(str(scenario), "--folder", str(tmp_path / "chaos"))
    assert done.returncode == 2
    assert "did you mean preempt?" in done.stderr
    assert not (tmp_path / "chaos").exists()
