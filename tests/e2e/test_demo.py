"""`make demo` for each architecture: the whole way, with real training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.watch import Watch, WayOut, asked_hosts, configured_indexes
from tpustack import datasets, project

SECONDS = 600
# There is one demo on a machine at a time.
pytestmark = pytest.mark.xdist_group("demo")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, str], set[str]]]:
    """The variables of a machine that has the engine but no data yet, and the hosts it asks."""
    own = tmp_path_factory.mktemp("cache")
    shared = project.cache_folder() / "toolchain"
    shared.mkdir(parents=True, exist_ok=True)
    (own / "tpu-stack").mkdir()
    (own / "tpu-stack" / "toolchain").symlink_to(shared)
    with asked_hosts() as hosts:
        way_out = WayOut()
        way_out.start()
        yield {**os.environ, **way_out.variables, "XDG_CACHE_HOME": str(own)}, hosts
        way_out.stop()


@pytest.fixture(scope="module", params=["vm", "node"])
def demo(
    request: pytest.FixtureRequest, network: tuple[dict[str, str], set[str]]
) -> tuple[dict[str, Any], str]:
    """What a demo says, in figures and in words."""
    command = [sys.executable, "-m", "tpustack", "demo", "--architecture", request.param]
    process = subprocess.Popen(
        command,
        cwd=project.root(),
        env=network[0],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
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
    # All of it goes through the proxy: what is asked without it is not seen there.
    assert watch.elsewhere == set()
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


def test_the_demo_asks_no_host_but_google_s_and_the_configured_indexes(
    demo: tuple[dict[str, Any], str], network: tuple[dict[str, str], set[str]]
) -> None:
    # The local cloud answers for Google's names, except for this one, which is asked before.
    mirror = urlsplit(datasets.MNIST_MIRROR).hostname
    assert mirror in network[1]
    assert network[1] <= {mirror, *configured_indexes()}
