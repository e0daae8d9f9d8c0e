"""Ctrl-C at any moment leaves no process behind, and the next demo works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.patience import PATIENCE, until
from tpustack.local import LocalCloudCommand
from tpustack.project import root

# There is one demo on a machine at a time.
pytestmark = pytest.mark.xdist_group("demo")
DEMO = [sys.executable, "-m", "tpustack", "demo"]


def is_running(cloud: LocalCloudCommand) -> bool:
    done = subprocess.run(cloud.arguments("status"), capture_output=True, check=False)
    return done.returncode == 0


def descendants(pid: int, cloud: LocalCloudCommand) -> list[psutil.Process]:
    found = psutil.Process(pid).children(recursive=True)
    if is_running(cloud):
        daemon = psutil.Process(cloud.status()["pid"])
        found += [daemon, *daemon.children(recursive=True)]
    return found


@pytest.mark.parametrize(
    ("moment", "number"),
    [
        ("● local Google Cloud", signal.SIGINT),
        # In the middle of the update: the program, the provider and the language host run.
        ("  + compute:Network", signal.SIGINT),
        ("  + compute:Network", signal.SIGTERM),
        ("● training", signal.SIGTERM),
    ],
)
def test_an_interrupted_demo_leaves_no_process(moment: str, number: int) -> None:
    cloud = LocalCloudCommand()
    with subprocess.Popen(
        DEMO,
        cwd=root(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if line.startswith(moment):
                break
        started = descendants(demo.pid, cloud)
        # As a terminal does: to the whole foreground group.
        os.killpg(demo.pid, number)
        rest = demo.stdout.read()
        assert demo.wait(PATIENCE) == 128 + number
    assert "Traceback" not in rest
    until(lambda: not any(process.is_running() for process in started), "all have ended")
    assert not is_running(cloud)
