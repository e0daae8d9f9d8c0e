"""A job: its mode (train, evaluate, train-and-evaluate), data, results, model and parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_training import errors, tasks
from tpu_training.cluster.google import is_bucket
from tpu_training.data.manifest import FILE_NAME, is_function, no_manifest, parse_manifest
from tpu_training.loop.callbacks import Callback
from tpu_training.models.params import JAX, Params, parse_steps
from tpu_training.models.registry import ModelDefinition

if TYPE_CHECKING:
    import tensorflow as tf


MODES = ("train", "evaluate", "train-and-evaluate")


@dataclass(frozen=True)
class Job:
    """A job as the command line or a program describes it."""

    mode: str
    tpu: str | None
    tpu_project: str | None
    tpu_zone: str | None
    data: str
    model_dir: str
    model: ModelDefinition
    params: Params
    callbacks: tuple[Callback, ...] = ()
    given: Mapping[str, Any] | None = None
    """What a program handed over for each split, where `data` is no place but a word for it."""

    @property
    def is_live(self) -> bool:
        """Whether the examples come from a function or the program, and not from files."""
        return self.given is not None or is_function(self.data)

    @property
    def trains(self) -> bool:
        """Whether the mode trains."""
        return self.mode in ("train", "train-and-evaluate")

    @property
    def evaluates(self) -> bool:
        """Whether the mode evaluates."""
        return self.mode in ("evaluate", "train-and-evaluate")


@dataclass(frozen=True)
class Result:
    """What a job hands back.

    Attributes:
        summary: A line with the main figures.
        metrics: What stands in `metrics.json`: `test_loss`, `test_accuracy`, `steps` and so on.
        history: A row for each loop of steps: `step`, `loss`, `learning_rate`, the task's metrics
            and, if one followed, the validation's. `pandas.DataFrame(result.history)` is a table.
        model: The model whose figures are in `metrics`, with averaged weights under `ema_decay`;
            call it with (features, training=False).
        model_dir: Where checkpoints, events and the report are.
        predict: Maps features (examples, …), as those of the data, to what the model says of them,
            NumPy arrays by name: compiled, in batches, on the devices that trained it. For classes:
            `probabilities`, float32 (examples, classes), and `classes`, int32 (examples,). Other
            tasks: see their `predictions`.
        evaluate: Maps more examples, in any form that `fit` takes, to their loss and metrics.
    """

    summary: str
    metrics: Mapping[str, Any]
    history: Sequence[Mapping[str, float]]
    model: tf.Module
    model_dir: str
    predict: Callable[[Any], dict[str, Any]]
    evaluate: Callable[[Any], dict[str, float]]


def check_local_files(job: Job) -> None:
    """Raise InputError with every problem of the job's files on this machine.

    This takes no TensorFlow, which takes seconds to load. Files in a bucket are checked later.
    """
    problems = [
        *_data_problems(job),
        *directory_problems(job.model_dir),
        *_weights_problems(job),
    ]
    if job.params.callback and not Path(job.params.callback).is_file():
        problems.append(f"--callback={job.params.callback}: there is no such file")
    if job.params.eager and job.params.backend == JAX:
        problems.append("--eager=true: JAX compiles every step; omit it, or --backend=jax")
    try:
        parse_steps(job.params.profile_steps)
    except errors.InputError as error:
        problems.append(str(error))
    if problems:
        raise errors.ParamsError(problems)


def missing_data(data: str) -> Iterator[str]:
    """Yield the problem of `data`, a place on this machine that holds none."""
    if is_bucket(data):
        return
    if is_function(data):
        # What it gives is only known with TensorFlow.
        if not Path(data).is_file():
            yield f"--data={data}: there is no such file"
    elif not Path(data, FILE_NAME).is_file():
        yield str(no_manifest(data))


def _data_problems(job: Job) -> Iterator[str]:
    if is_bucket(job.data) or job.given is not None:
        return
    missing = list(missing_data(job.data))
    if missing or is_function(job.data):
        yield from missing
        return
    # numpy, which --help needs not.
    from tpu_training.data.validation import with_fraction

    try:
        path = Path(job.data) / FILE_NAME
        manifest = parse_manifest(path.read_text("utf-8", "replace"), str(path))
        tasks.check_targets(job.model, manifest.input_spec(job.params.image_size))
        if job.trains:
            with_fraction(job.params, manifest)
        manifest.steps(job.params)
        if job.mode == "evaluate":
            manifest.split("test")
    except (errors.InputError, OSError) as error:
        yield str(error)


def directory_problems(model_dir: str) -> Iterator[str]:
    """Yield the problem of `model_dir`, a place on this machine that can't be written to."""
    if is_bucket(model_dir):
        return
    path = Path(model_dir).absolute()
    try:
        existing = next(parent for parent in (path, *path.parents) if parent.exists())
    except OSError as error:
        yield f"--model-dir={model_dir}: can't be looked at ({error}); choose another directory"
        return
    if not existing.is_dir():
        yield f"--model-dir={model_dir}: {existing} is a file; choose another directory"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield (
            f"--model-dir={model_dir}: this user can't write to {existing}; choose another "
            "directory, or change its owner or mode"
        )


def _weights_problems(job: Job) -> Iterator[str]:
    path = job.params.init_from
    # A job that resumes reads its own checkpoint. Only TensorFlow can look for one in a bucket.
    if not path or is_bucket(path) or is_bucket(job.model_dir):
        return
    if Path(job.model_dir, "checkpoints").exists():
        return
    if not (Path(path).exists() or Path(f"{path}.index").exists()):
        yield f"--init_from={path}: there is no such file, folder or checkpoint"
