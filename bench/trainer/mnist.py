"""The data that the rows about training share."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tpustack import datasets
from tpustack.errors import TpustackError
from tpustack.project import root


def write_mnist(folder: Path) -> Path:
    """Convert MNIST for the trainer into `folder`/data."""
    target = folder / "data"
    source = datasets.mnist(lambda text: None).argument
    run_program("tpu_training", "data", "convert", "--source", source, "--output", str(target))
    return target


def run_program(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run `python -m module`, with more variables in its environment; return what it says."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command,
        cwd=root(),
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise TpustackError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout
