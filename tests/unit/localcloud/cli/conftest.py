"""The command line as a user runs it, on a home folder of the test's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from localcloud import lifecycle

Run = Callable[..., "subprocess.CompletedProcess[str]"]
ROOT = Path(__file__).parents[4]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "cloud"
    yield path
    pid = lifecycle.lock_holder(path)
    if pid is not None:
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def run(home: Path) -> Run:
    """Runs `python -m localcloud ARGUMENTS --home HOME`."""

    def command(*arguments: str, home: Path = home) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "localcloud", *arguments, "--home", str(home)],
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
            cwd=ROOT,
        )

    return command


@pytest.fixture
def started(run: Run) -> Run:
    """Runs commands while the cloud is up."""
    done = run("start")
    assert done.returncode == 0, done.stderr
    return run
