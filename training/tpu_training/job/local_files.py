"""Check what a job names on this machine's disk, before TensorFlow takes seconds to load.

What lies in a bucket is checked when TensorFlow, which reads it, is there.
"""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

from tpu_training.data.function import is_function
from tpu_training.data.manifest import FILE_NAME, no_manifest, parse_manifest
from tpu_training.errors import InputError, ParamsError
from tpu_training.job.job import Job
from tpu_training.models.params import Params
from tpu_training.tasks import check_targets


def check_local_files(job: Job) -> None:
    """Raise InputError with every problem of the job's data set, directory and other files."""
    problems = [
        *_data_problems(job),
        *_directory_problems(job.model_dir),
        *_weights_problems(job),
        *_observer_problems(job.params),
    ]
    if problems:
        raise ParamsError(problems)


def _data_problems(job: Job) -> Iterator[str]:
    if "://" in job.data:
        return
    if is_function(job.data):
        # What it gives is only known with TensorFlow.
        if not Path(job.data).is_file():
            yield f"--data={job.data}: there is no such file"
        return
    # numpy, which --help needs not.
    from tpu_training.data.validation import with_fraction

    try:
        path = Path(job.data) / FILE_NAME
        if not path.is_file():
            raise no_manifest(job.data)
        manifest = parse_manifest(path.read_text(encoding="utf-8"), str(path))
        check_targets(job.model, manifest.input_spec(job.params.image_size))
        if job.trains:
            with_fraction(job.params, manifest)
        manifest.split("train")
        if job.evaluates:
            manifest.split("test")
    except (InputError, OSError) as error:
        yield str(error)


def _directory_problems(model_dir: str) -> Iterator[str]:
    if "://" in model_dir:
        return
    path = Path(model_dir).absolute()
    there = next(parent for parent in (path, *path.parents) if parent.exists())
    if not there.is_dir():
        yield f"--model-dir={model_dir}: {there} is a file; name another directory"
    elif not os.access(there, os.W_OK | os.X_OK):
        yield (
            f"--model-dir={model_dir}: this user may not write to {there}; name another directory "
            "or change its owner or mode"
        )


def _weights_problems(job: Job) -> Iterator[str]:
    path = job.params.init_from
    # A job that resumes reads its own checkpoint.
    if not path or "://" in path or Path(job.model_dir, "checkpoints").exists():
        return
    if not (Path(path).exists() or Path(f"{path}.index").exists()):
        yield f"--init_from={path}: there is no such file, folder or checkpoint"


def _observer_problems(params: Params) -> Iterator[str]:
    if params.callback and not Path(params.callback).is_file():
        yield f"--callback={params.callback}: there is no such file"
    if params.tracker and importlib.util.find_spec(params.tracker) is None:
        yield (
            f"--tracker={params.tracker}: the library is not installed: pip install "
            f"'tpu-stack-training[{params.tracker}]'"
        )
