"""What a job finds around it on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import tpu_training
from tpu_agent.jobs.environment import Environment
from tpu_agent.jobs.queue import Spec
from tpu_core.contract import Environment as Variables
from tpu_training import __version__

from .memory import Bucket, Clock, MemoryStore

# The folder that the machine unpacks the wheel to: it brings both packages.
PACKAGES = Path(tpu_training.__file__).parents[1]


def call(command: Sequence[str], variables: Mapping[str, str]) -> int:
    return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


def said(folder: Path, spec: Spec) -> tuple[str, str]:
    """What a job writes to its two outputs, in an environment that is made for it."""
    folder.mkdir()
    environment = Environment(folder, spec, {"variables": {}}, call, lambda _: None, lambda _: None)
    environment.make(MemoryStore(Bucket(Clock())))
    done = subprocess.run(
        ["/bin/bash", "-c", spec.command],
        env={**os.environ, "PYTHONPATH": "", **environment.variables()},
        capture_output=True,
        check=False,
        text=True,
    )
    return done.stdout, done.stderr


def test_a_job_with_tensorflow_finds_the_command_of_the_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Variables.PYTHON, sys.executable)
    monkeypatch.setenv(Variables.PACKAGES, str(PACKAGES))
    spec = Spec("tpu-training --version", framework="tensorflow")
    out, err = said(tmp_path / "try", spec)
    assert out == f"{__version__}\n", err


@pytest.mark.parametrize("framework", ["jax", "pytorch"])
def test_a_job_of_another_framework_finds_the_lease_and_ledger_and_nothing_of_the_machine(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(Variables.PYTHON, sys.executable)
    monkeypatch.setenv(Variables.PACKAGES, str(PACKAGES))
    line = "import tpu_core; print(tpu_core.run.__name__); import numpy"
    out, err = said(tmp_path / "try", Spec(f"python -c '{line}'", framework=framework))
    assert out == "run\n"
    assert "No module named 'numpy'" in err
