"""Checks of the files to upload and of the job's name."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from infra.checks import upload
from infra.checks.context import Context
from infra.settings import StackSettings
from infra.settings.problems import UNSET, Problem

WHEEL_PATTERN = "tpu_stack_training-*.whl"
MANIFEST = "manifest.json"
_DIGEST = 8
_FILES = (".py", ".json", ".yaml", ".yml")
_SECONDS = 60.0
# As the trainer ends after wrong input (training/README.md, exit codes).
_WRONG_INPUT, _ENDING = 2, "training failed: "
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
    """Check that the data directory exists and holds a data set, and nothing secret."""
    data = settings.training.data
    if data is None:
        return
    folder = context.root / data
    if upload.is_around(folder, context.root):
        why = "is the project's folder or one around it, and all that is in it would be uploaded"
        yield Problem("training.data", data, why, "Use a folder that holds the data set alone")
        return
    if not folder.is_dir():
        why = "is no directory" if folder.exists() else "does not exist"
    elif not data_files(settings, context.root):
        why = "has no files"
    elif not (folder / MANIFEST).is_file():
        why = f"has no {MANIFEST}, without which no training can read it"
    else:
        files = data_files(settings, context.root).values()
        for why in upload.refused(folder, files):
            cure = "Everybody who may read the bucket would have it. Take it out of the folder"
            yield Problem("training.data", data, why, cure)
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


def check_args(settings: StackSettings, context: Context) -> Iterator[Problem]:
    """Check the trainer's arguments: as the wheel that the machine will get reads them."""
    args, wheel = settings.training.args, find_wheel(settings, context.root)
    for argument in args:
        value = argument.rpartition("=")[2]
        if value.endswith(_FILES) and "://" not in value:
            if settings.jobs.enabled:
                return  # The trials of a sweep have them, and files come with `--dir`.
            why = f"names the file {value}, which the machine does not get"
            cure = (
                "Set jobs.enabled, and send the file with the command: `tpustack job submit --dir "
                'FOLDER --framework tensorflow --command "tpu-training train-and-evaluate …"`'
            )
            yield Problem("training.args", argument, why, cure)
            return
    if args and wheel is not None and (refusal := _refused(wheel, args)):
        cure = "`tpu-training train-and-evaluate --help` lists all parameters"
        yield Problem(
            "training.args", " ".join(args), f"would end the training: {refusal.rstrip('?')}", cure
        )


@functools.cache
def _refused(wheel: Path, args: tuple[str, ...]) -> str | None:
    """Return why a wheel's trainer would refuse its arguments; None if it would not."""
    command = [
        *(sys.executable, "-m", "tpu_training", "train-and-evaluate", "--check"),
        *("--tpu=local", "--data=data", "--model-dir=model", *args),
    ]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            # Without the modules and files of the working directory, which no machine has.
            cwd=wheel.parent,
            env={**os.environ, "PYTHONPATH": str(wheel.absolute())},
            text=True,
            timeout=_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    said = done.stderr.strip().rpartition(_ENDING)[2]
    return said if done.returncode == _WRONG_INPUT else None


def job_name(settings: StackSettings, root: Path) -> str:
    """Return the job's folder below `jobs/`: other data or other arguments make another job."""
    manifest = root / (settings.training.data or "") / MANIFEST
    parts = [argument.encode() for argument in settings.training.args]
    if settings.training.data is not None and manifest.is_file():
        # The manifest holds the SHA-256 of each of the data set's files.
        parts.append(manifest.read_bytes())
    if not parts:
        return settings.training.job
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()
    return f"{settings.training.job}-{digest[:_DIGEST]}"


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
