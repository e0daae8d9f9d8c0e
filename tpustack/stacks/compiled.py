"""What Google's TPU compiler said of a stack's job, where `tpu-training compile` was asked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from infra.checks.software import MANIFEST
from infra.settings import StackSettings

if TYPE_CHECKING:
    from tpu_training.compile import Answer, Manifest


def manifest_of(settings: StackSettings, root: Path) -> Manifest | None:
    """Return the description of the stack's data set; None if nobody here has it."""
    folder = root / (settings.training.data or "")
    if settings.training.data is None or not (folder / MANIFEST).is_file():
        return None
    # It takes a while to load, for which only those who have data should wait.
    from tpu_training.compile import read_manifest
    from tpu_training.errors import TrainingError

    try:
        return read_manifest(str(folder))
    except TrainingError:
        return None


def answer_of(settings: StackSettings, manifest: Manifest | None) -> Answer | None:
    """Return what is known of the stack's job on one slice of its TPU; compiles nothing."""
    if manifest is None:
        return None
    from tpu_training.compile import cached_job

    return cached_job(settings.tpu.accelerator_type, settings.training.args, manifest)


def asking(settings: StackSettings) -> str:
    """Return the command that finds the answer."""
    data = f"--data={settings.training.data or 'DIR'}"
    job = shlex.join([*settings.training.args, data])
    return f"tpu-training compile --tpu={settings.tpu.accelerator_type} {job}"
