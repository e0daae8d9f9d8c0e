"""The data that the rows about training share."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tpustack.demo import dataset
from tpustack.errors import TpustackError
from tpustack.project import ROOT


def write_mnist(folder: Path) -> Path:
    """Convert MNIST for the trainer into `folder`/data."""
    target = folder / "data"
    source = dataset.obtain(lambda text: None).argument
    run_program("training", "data", "convert", "--source", source, "--output", str(target))
    return target


def run_program(module: str, *arguments: str) -> str:
    """Run `python -m module` and return its standard output."""
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TpustackError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout
