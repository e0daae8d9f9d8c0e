"""The arguments that describe a job, and the commands for trained models and the environment.

A command has a function `add_…(modes)` that adds its parser and one that builds, of the parsed
arguments, what prints the results and returns the exit code. No command loads TensorFlow before it
runs. argparse, since the wheel runs on machines whose locks have nothing else.
"""

import argparse
import importlib.metadata
import logging
import math
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tpu_training.cluster.endpoint as endpoint
from tpu_training import errors, tasks
from tpu_training.cluster import machine
from tpu_training.job import job, start
from tpu_training.models import params as base
from tpu_training.models.registry import BUILT_IN, DEFAULT_MODEL, ModelDefinition, load_model
from tpu_training.serving import EXPORTED

Command = Callable[[], int]
"""Does what was asked, prints the results and returns the exit code. Raises TrainingError."""
Build = Callable[[argparse.Namespace], Command]
"""Makes a command of its parsed arguments, of which `rest` are unknown ones. Raises InputError."""

# What argparse and `add_command` keep next to a command's own flags.
_NO_FLAGS = {"build", "mode", "prog", "rest"}


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


def number(kind: type, low: float, high: float = math.inf) -> Callable[[str], Any]:
    """Return what reads a flag's number, of the `kind` int or float, from `low` to `high`."""

    def read(text: str) -> Any:
        try:
            value = base.convert(text, kind)
            base.check(value, {"choices": (), "low": low, "high": high})
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text}: {error}") from None
        return value

    return read


def add_debug(parser: argparse.ArgumentParser) -> None:
    """Add --debug."""
    parser.add_argument("--debug", action="store_true", help="show tracebacks and TensorFlow's log")


def add_job_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a job: where it trains, what, with which data, and where it writes.

    All else is a parameter (--NAME=VALUE, or a line of --config), since it depends on the model.
    """
    option = parser.add_argument
    option(
        "--tpu",
        help="a TPU's name, grpc://HOST:PORT (several separated by commas), or local on a TPU VM "
        "(default: TPU_GRPC_URL, TPU_NAME, TPU_CONFIG, COLAB_TPU_ADDR, "
        "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, or this machine)",
    )
    option(
        "--tpu-zone",
        help="zone of a TPU that is given by name, or several separated by commas (default: "
        "TPU_ZONE, or the VM's)",
    )
    option(
        "--tpu-project",
        help="project of a TPU that is given by name (default: TPU_PROJECT, or the VM's)",
    )
    add_model(parser)
    option(
        "--data",
        required=True,
        help="directory or gs:// URL of the dataset, or a file NAME.py with a function "
        "dataset(split, context)",
    )
    option("--model-dir", required=True, help="directory or gs:// URL for checkpoints and results")
    option("--config", help="YAML or JSON file with parameters")
    option("--check", action="store_true", help="report wrong arguments and exit")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --model and --task."""
    parser.add_argument(
        "--model",
        help=f"{', '.join(BUILT_IN)}, or your own file NAME.py (default: {DEFAULT_MODEL}); with "
        "--help, list the model's parameters",
    )
    parser.add_argument(
        "--task",
        help=f"{', '.join(tasks.built_in_tasks())}, or your own file NAME.py (default: the model "
        "file's task, or the one for the dataset's targets)",
    )


def build_job(mode: str, known: argparse.Namespace, rest: Sequence[str]) -> job.Job:
    """Return the job that the parsed flags and the parameters in `rest` describe.

    Raises:
        InputError: With every problem at once.
    """
    model, params, _ = build_model(known, rest)
    # Which TPU is meant is found when the job starts: the environment and the API may name it.
    where = {name: getattr(known, name) for name in ("tpu", "tpu_project", "tpu_zone")}
    return job.Job(
        mode=mode, data=known.data, model_dir=known.model_dir, model=model, params=params, **where
    )


def build_model(
    known: argparse.Namespace, rest: Sequence[str]
) -> tuple[ModelDefinition, base.Params, dict[str, Any]]:
    """Return the model, its parameters, and those that were given.

    The command line wins over --config, and --config over the model's defaults. A model file of
    the user's runs here, since it defines its parameters.

    Raises:
        InputError: With every problem at once; a misspelt flag with the nearest one.
    """
    overrides, problems = base.split_overrides(rest)
    config = base.read_config(known.config)
    named, named_task = config.pop("model", DEFAULT_MODEL), config.pop("task", None)
    model = tasks.with_task(load_model(known.model or str(named)), known.task or named_task)
    flags = [name.replace("_", "-") for name in vars(known) if name not in _NO_FLAGS]
    try:
        params = base.build_params(config, overrides, flags, model.params)
    except errors.ParamsError as error:
        raise errors.ParamsError([*problems, *error.problems]) from error
    if problems:
        raise errors.ParamsError(problems)
    return model, params, {**config, **dict(overrides)}


# --- `doctor env`.


def add_doctor(modes: Any) -> None:
    """Add the parser."""
    doctor = modes.add_parser("doctor", help="examine the environment", allow_abbrev=False)
    env = add_command(
        doctor.add_subparsers(dest="subject", required=True, metavar="SUBJECT"),
        "env",
        lambda known: partial(_examine, known),
        help="show what a training would use here, and why",
        description="Show what a training would use on this machine, and why. Exit code 1: it "
        "could not start.",
    )
    for flag in ("--tpu", "--tpu-project", "--tpu-zone"):
        env.add_argument(flag, help="as for train")


def _examine(known: argparse.Namespace) -> int:
    """Ask as the start of a job does, but once, and load no TensorFlow; 1 if no job could start."""
    logging.getLogger("tpu_training").setLevel(logging.ERROR)
    found, problems = machine.find_machine(), list[str]()
    # nvidia0, nvidia1, …; nvidiactl, nvidia-uvm and others there are no GPUs.
    gpus = sum(path.name[6:].isdigit() for path in Path("/dev").glob("nvidia*"))
    chips = f"{found.tpu_chips} TPU chips {found.tpu_generation}".strip()
    libtpu = "libtpu" if found.has_libtpu else "no libtpu"
    print(f"this machine: {os.cpu_count()} CPUs, {gpus} GPUs, {chips}, {libtpu}")
    distributions = sorted(set(importlib.metadata.packages_distributions().get("tensorflow", ())))
    installed = [f"{name} {importlib.metadata.version(name)}" for name in distributions]
    print("tensorflow:", ", ".join(installed) or "not installed")
    if not installed and (error := errors.find_known_error(errors.NO_TENSORFLOW)):
        problems.append(f"TensorFlow is not installed: {error.fix}")
    print("settings that can name a TPU, the first one that is set counts:")
    for name, value in endpoint.settings(known.tpu, os.environ).items():
        print(f"  {name:<33}{value or 'not set'}")
    try:
        target = endpoint.find_target(known.tpu, known.tpu_project, known.tpu_zone, os.environ)
        workers = start.choose_workers(target, endpoint.Wait(tries=1, interval=0.0))
    except errors.TrainingError as error:
        problems.append(str(error))
    else:
        place, reason = "this machine's CPU", "no setting names a TPU and there is no GPU"
        if isinstance(workers, endpoint.Addresses):
            place, reason = f"the TPU at {workers.url}", f"{workers.source} names it"
            silent = {worker: endpoint.why_silent(worker) for worker in workers.addresses}
            problems += [f"grpc://{worker}: {why}" for worker, why in silent.items() if why]
        elif isinstance(workers, endpoint.LocalTpu):
            place, reason = "this machine's TPU", workers.reason
        elif gpus:
            place, reason = "this machine's GPUs", "no setting names a TPU"
        print(f"a training would use: {place}\nbecause: {reason}")
    print("".join(f"problem: {problem}\n" for problem in problems), end="", flush=True)
    return errors.EXIT_FAILURE if problems else 0


# --- The commands for trained models.

# Enough to see a loss of a few percent; TFLite takes them one at a time, on a CPU.
_TEST_LIMIT = 2000


def add_export(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "export",
        lambda known: partial(_export, known),
        help="export a trained model as SavedModel or int8 TFLite",
        description="Write a trained model as a SavedModel to serve, or as full-integer TFLite "
        "for the Edge TPU. The loss of accuracy is checked, the operations are not.",
    )
    option = parser.add_argument
    option("--model-dir", required=True, help="model directory of the training, or its gs:// URL")
    option("--output", required=True, help="directory or gs:// URL to write to")
    option("--format", choices=EXPORTED, default=EXPORTED[0], help="(default: saved_model)")
    option(
        "--best",
        action="store_true",
        help="export the best evaluation's checkpoint instead of the newest one",
    )
    option("--batch-size", type=number(int, 1), help="fixed batch size (default: any)")
    option("--data", help="dataset for tflite (default: the training's)")
    option(
        "--test-examples",
        type=number(int, 1),
        default=_TEST_LIMIT,
        help=f"test examples that measure tflite's accuracy (default: {_TEST_LIMIT})",
    )
    option("--model", help="path of your model's file, if it moved")


def _export(known: argparse.Namespace) -> int:
    from tpu_training.serving.export import run_export

    line = run_export(
        *(known.model_dir, known.output, known.format, known.batch_size),
        *(known.data, known.model, known.test_examples, known.best),
    )
    print(f"export finished {line}", flush=True)
    return 0
