"""Builds the training wheel reproducibly: the same sources give the same bytes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tpustack.errors import TpustackError
from tpustack.project import root

# 1980-01-01, the earliest time that a zip archive can hold.
_EPOCH = "315532800"


def build(output: Path | None = None) -> Path:
    """Build the wheel of training/ into `output` (dist/), in place of an older one.

    Raises:
        TpustackError: with the build's output when it fails.
    """
    output = output or root() / "dist"
    with tempfile.TemporaryDirectory() as folder:
        # A build leaves files beside the sources, so it gets a copy.
        source = Path(folder) / "training"
        made = shutil.ignore_patterns("__pycache__", "build", "*.egg-info")
        shutil.copytree(root() / "training", source, ignore=made)
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index"]
        command += ["--no-build-isolation", "--wheel-dir", folder, str(source)]
        fixed = {"SOURCE_DATE_EPOCH": _EPOCH, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        done = subprocess.run(
            command, env=os.environ | fixed, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise TpustackError(f"the training wheel can't be built:\n{done.stderr.strip()}")
        built = next(Path(folder).glob("*.whl"))
        output.mkdir(parents=True, exist_ok=True)
        for old in output.glob("tpu_stack_training-*.whl"):
            old.unlink()
        return Path(shutil.move(built, output / built.name))
