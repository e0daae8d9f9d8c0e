"""Checks of the files to upload and of the job's name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import UNSET, Problem

WHEEL_PATTERN = "tpu_stack_training-*.whl"
_JOB = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")


def check_wheel(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the training wheel exists."""
    wheel = find_wheel(settings, context.root)
    if wheel is None:
        yield Problem(
            "training.wheel",
            UNSET,
            f"and there is no dist/{WHEEL_PATTERN}",
            "Build it with `make wheel`, or set the path of one",
        )
    elif not wheel.is_file() or wheel.suffix != ".whl":
        yield Problem(
            "training.wheel",
            settings.training.wheel,
            "is no wheel" if wheel.exists() else "does not exist",
            "Build it with `make wheel`, or set the path of one, relative to the project's root",
        )


def check_data(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the data directory exists and has files."""
    data = settings.training.data
    if data is None:
        return
    folder = context.root / data
    if not folder.is_dir():
        why = "is no directory" if folder.exists() else "does not exist"
    elif not data_files(settings, context.root):
        why = "has no files"
    else:
        return
    yield Problem(
        "training.data",
        data,
        why,
        f"Fill it with `tpu-training data convert --source DIR --output {data}`, or leave "
        "training.data out if the bucket has the data already",
    )


def check_job(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check that the job's name can be a folder in the bucket."""
    if not _JOB.fullmatch(settings.training.job):
        yield Problem(
            "training.job",
            settings.training.job,
            "is no job name (at most 63 lower-case letters, digits, hyphens, dots, underscores)",
            "Use one like mnist-1",
        )


def find_wheel(settings: StackSettings, root: Path) -> Path | None:
    """Return the wheel to upload: the one that is set, else the newest in dist/."""
    if settings.training.wheel:
        return root / settings.training.wheel
    built = list((root / "dist").glob(WHEEL_PATTERN))
    return max(built, key=lambda path: path.stat().st_mtime, default=None)


def data_files(settings: StackSettings, root: Path) -> dict[str, Path]:
    """Return the files to upload by their name below `data/`, without hidden ones."""
    if settings.training.data is None:
        return {}
    folder = root / settings.training.data
    relative = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {
        name.as_posix(): path
        for name, path in sorted(relative.items())
        if not any(part.startswith(".") for part in name.parts)
    }
