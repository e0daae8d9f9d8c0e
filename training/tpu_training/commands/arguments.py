"""The arguments that describe a job: its TPU, model, data, results and parameters."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from tpu_training.errors import ParamsError
from tpu_training.job.job import Job
from tpu_training.models.params import Params, build_params, read_config, split_overrides
from tpu_training.models.registry import BUILT_IN, DEFAULT_MODEL, ModelDefinition, load_model
from tpu_training.tasks import built_in_tasks, with_task

# Does it, prints the results and returns the exit code. Raises TrainingError.
Command = Callable[[], int]
# Makes a command of its parsed arguments; `rest` are those that its parser did not know. Raises
# InputError.
Build = Callable[[argparse.Namespace], Command]


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a job."""
    parser.add_argument(
        "--tpu",
        help="a TPU's name, grpc://HOST:PORT (several with commas), or local on a TPU VM; default: "
        "TPU_GRPC_URL, TPU_NAME, TPU_CONFIG, COLAB_TPU_ADDR, KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, or "
        "this machine",
    )
    parser.add_argument(
        "--tpu-zone",
        help="zone of a TPU given by name, or several with commas (default: TPU_ZONE, or the VM's)",
    )
    parser.add_argument(
        "--tpu-project",
        help="project of a TPU given by name (default: TPU_PROJECT, or the VM's)",
    )
    parser.add_argument(
        "--model",
        help=f"{', '.join(BUILT_IN)}, or a file NAME.py of your own (default: "
        f"{DEFAULT_MODEL}); with --help, list its parameters",
    )
    add_task(parser)
    parser.add_argument(
        "--data",
        required=True,
        help="directory or gs:// URL of the data set, a file NAME.py with a function "
        "dataset(split, context), Parquet files, WebDataset's tar files, or tfds:NAME",
    )
    parser.add_argument("--model-dir", required=True, help="directory or gs:// URL for the results")
    parser.add_argument("--config", help="YAML or JSON file with parameters")
    parser.add_argument(
        "--check", action="store_true", help="say what is wrong with the arguments, and do nothing"
    )


def add_task(parser: argparse.ArgumentParser) -> None:
    """Add --task."""
    parser.add_argument(
        "--task",
        help=f"{', '.join(built_in_tasks())}, or a file NAME.py of your own (default: the model "
        "file's, or what the data set's targets are for)",
    )


def build_job(mode: str, known: argparse.Namespace, rest: Sequence[str]) -> Job:
    """Return the job that the parsed flags and the parameters in `rest` describe.

    Raises:
        InputError: With every problem at once.
    """
    where = ("debug", "tpu", "tpu-zone", "tpu-project")
    flags = (*where, "model", "task", "data", "model-dir", "config", "check")
    model, params, _ = build_model(known, rest, flags)
    return Job(
        mode=mode,
        tpu=known.tpu,
        tpu_project=known.tpu_project,
        tpu_zone=known.tpu_zone,
        data=known.data,
        model_dir=known.model_dir,
        model=model,
        params=params,
    )


def build_model(
    known: argparse.Namespace, rest: Sequence[str], flags: Sequence[str]
) -> tuple[ModelDefinition, Params, dict[str, Any]]:
    """Return the model, its parameters, and those that were given.

    `flags` are the command's own, for suggestions.

    Raises:
        InputError: With every problem at once.
    """
    overrides, problems = split_overrides(rest)
    config = read_config(known.config)
    named = config.pop("model", DEFAULT_MODEL)
    named_task = config.pop("task", None)
    model = load_model(known.model or str(named))
    model = with_task(model, getattr(known, "task", None) or named_task)
    try:
        params = build_params(config, overrides, flags, model.params)
    except ParamsError as error:
        raise ParamsError([*problems, *error.problems]) from error
    if problems:
        raise ParamsError(problems)
    return model, params, {**config, **dict(overrides)}


def add_command(
    modes: Any, name: str, build: Build, *, help: str, description: str | None = None
) -> argparse.ArgumentParser:
    """Add the parser of the command `name`, which `build` makes, and return it."""
    parser: argparse.ArgumentParser = modes.add_parser(
        name, help=help, description=description, allow_abbrev=False
    )
    parser.set_defaults(build=build, prog=parser.prog)
    add_debug(parser)
    return parser


def add_debug(parser: argparse.ArgumentParser) -> None:
    """Add --debug."""
    parser.add_argument("--debug", action="store_true", help="show tracebacks and TensorFlow's log")
