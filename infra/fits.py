"""A preview warns where the training is known not to fit into its TPU.

`tpu-training compile` found it out and kept it. Nothing is compiled here, and where nothing was
compiled on this machine nothing is asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pulumi

from infra import beside
from infra.settings import StackSettings

_SECONDS = 10.0


def report(settings: StackSettings, root: Path) -> None:
    """Warn if the job does not fit; the look-up runs beside the program."""
    if settings.training.data and _answers().is_dir():
        beside.look(lambda: misfit(settings, root), _tell)


def misfit(settings: StackSettings, root: Path) -> str | None:
    """Return why the job does not fit into the stack's TPU; None if it does, or nobody knows."""
    command = [
        *(sys.executable, "-m", "tpu_training", "compile", "--cached", "--json"),
        *settings.training.args,
        f"--tpu={settings.tpu.accelerator_type}",
        f"--data={root / (settings.training.data or '')}",
    ]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, check=False, timeout=_SECONDS)
        answers = json.loads(done.stdout)["answers"]
        return answers[0]["misfit"] if answers else None
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return None  # No error of any kind may fail a preview.


def _answers() -> Path:
    """Return the folder of the answers (training/docs/compile.md)."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base, "tpu-stack", "compile")


def _tell(why: str | None) -> None:
    if why is not None:
        pulumi.log.warn(f"training.args: {why}")
