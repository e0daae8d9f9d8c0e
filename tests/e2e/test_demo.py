"""`make demo` for each architecture: the whole way, with real training."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tpustack import project

SECONDS = 600
# There is one demo on a machine at a time.
pytestmark = pytest.mark.xdist_group("demo")


@pytest.fixture(scope="module", params=["vm", "node"])
def demo(request: pytest.FixtureRequest) -> tuple[dict[str, Any], str]:
    """What a demo says, in figures and in words."""
    command = [sys.executable, "-m", "tpustack", "demo", "--architecture", request.param]
    done = subprocess.run(
        command, cwd=project.root(), capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    summary: dict[str, Any] = json.loads(
        (project.demo() / "summary.json").read_text(encoding="utf-8")
    )
    assert summary["architecture"] == request.param
    return summary, done.stdout


def test_the_demo_trains_on_eight_replicas_and_leaves_nothing(
    demo: tuple[dict[str, Any], str],
) -> None:
    summary, said = demo
    wanted = 0.985 if summary["data"].startswith("MNIST") else 0.9
    assert summary["test_accuracy"] >= wanted
    assert summary["replicas"] == 8
    assert summary["endpoint"].startswith("grpc://127.0.0.1:")
    assert summary["steps_per_second"] > 0
    assert summary["second_up_changes"] == 0
    assert summary["resources_left"] == 0
    assert summary["processes_left"] == 0
    assert summary["peak_memory_mib"] < 6 * 1024
    assert "test accuracy" in said
