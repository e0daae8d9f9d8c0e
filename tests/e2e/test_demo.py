"""`make demo` for each architecture: the whole way, with real training."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.watch import Watch
from tpustack import project

SECONDS = 600
# There is one demo on a machine at a time.
pytestmark = pytest.mark.xdist_group("demo")


@pytest.fixture(scope="module", params=["vm", "node"])
def demo(request: pytest.FixtureRequest) -> tuple[dict[str, Any], str]:
    """What a demo says, in figures and in words."""
    command = [sys.executable, "-m", "tpustack", "demo", "--architecture", request.param]
    process = subprocess.Popen(
        command, cwd=project.root(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    # The local cloud outlives the command that starts it, so what was seen once is followed, too.
    watch = Watch(lambda: [process.pid, *(each.pid for each in watch.left())])
    watch.start()
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
        watch.stop()
    assert process.returncode == 0, out[-3000:] + err[-3000:]
    assert watch.left() == []
    assert 500 < watch.peak_mib < 6 * 1024
    summary: dict[str, Any] = json.loads(
        (project.demo() / "summary.json").read_text(encoding="utf-8")
    )
    assert summary["architecture"] == request.param
    return summary, out


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
    assert "resources left in the local cloud: none" in said
    assert "test accuracy" in said
