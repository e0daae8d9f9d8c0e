"""What a job finds around it on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tpu_agent.jobs.environment import Environment
from tpu_agent.jobs.queue import Spec
from tpu_core.contract import Environment as Variables
from tpu_training import __version__

from .memory import Bucket, Clock, MemoryStore


def call(command: Sequence[str], variables: Mapping[str, str]) -> int:
    return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


def test_a_job_with_tensorflow_finds_the_command_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Variables.PYTHON, sys.executable)
    folder = tmp_path / "try"
    folder.mkdir()
    spec = Spec("tpu-training --version", framework="tensorflow")
    environment = Environment(folder, spec, {"variables": {}}, call, lambda _: None)
    environment.make(MemoryStore(Bucket(Clock())))
    done = subprocess.run(
        ["/bin/bash", "-c", spec.command],
        env={**os.environ, **environment.variables()},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.stdout == f"{__version__}\n", done.stderr
