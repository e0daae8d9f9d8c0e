"""The arguments that describe a job, and the commands for trained models and the environment.

A command has a function `add_…(modes)` that adds its parser and one that builds, of the parsed
arguments, what prints the results and returns the exit code. No command loads TensorFlow before it
runs. argparse, since the wheel runs on machines whose locks have nothing else.
"""

import argparse
import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import tpu_training.cluster.cloud_tpu as cloud_tpu
import tpu_training.cluster.endpoint as endpoint
from tpu_training.cluster.endpoint import Addresses, LocalTpu, NamedTpu, NoTpu, Target, Workers
from tpu_training.cluster.machine import Machine, check_library, find_machine
from tpu_training.errors import EXIT_FAILURE, InputError, ParamsError, TrainingError
from tpu_training.errors.catalog import NO_TENSORFLOW, find_known_error
from tpu_training.job.job import Job
from tpu_training.models.params import Params, build_params, read_config, split_overrides
from tpu_training.models.registry import BUILT_IN, DEFAULT_MODEL, ModelDefinition, load_model
from tpu_training.tasks import built_in_tasks, with_task

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
        help="a TPU's name, grpc://HOST:PORT (several with commas), or local on a TPU VM; default: "
        "TPU_GRPC_URL, TPU_NAME, TPU_CONFIG, COLAB_TPU_ADDR, KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS, or "
        "this machine",
    )
    option(
        "--tpu-zone",
        help="zone of a TPU given by name, or several with commas (default: TPU_ZONE, or the VM's)",
    )
    option(
        "--tpu-project", help="project of a TPU given by name (default: TPU_PROJECT, or the VM's)"
    )
    add_model(parser)
    option(
        "--data",
        required=True,
        help="directory or gs:// URL of the data set, or a file NAME.py with a function "
        "dataset(split, context)",
    )
    option("--model-dir", required=True, help="directory or gs:// URL for the results")
    option("--config", help="YAML or JSON file with parameters")
    option(
        "--check", action="store_true", help="say what is wrong with the arguments, and do nothing"
    )


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add --model and --task."""
    parser.add_argument(
        "--model",
        help=f"{', '.join(BUILT_IN)}, or a file NAME.py of your own (default: "
        f"{DEFAULT_MODEL}); with --help, list its parameters",
    )
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
    model, params, _ = build_model(known, rest)
    # Which TPU is meant is found when the job starts: the environment and the API may name it.
    where = {name: getattr(known, name) for name in ("tpu", "tpu_project", "tpu_zone")}
    return Job(
        mode=mode, data=known.data, model_dir=known.model_dir, model=model, params=params, **where
    )


def build_model(
    known: argparse.Namespace, rest: Sequence[str]
) -> tuple[ModelDefinition, Params, dict[str, Any]]:
    """Return the model, its parameters, and those that were given.

    The command line wins over --config, and --config over the model's defaults. A model file of
    the user's runs here, since it defines its parameters.

    Raises:
        InputError: With every problem at once; a misspelt flag with the nearest one.
    """
    overrides, problems = split_overrides(rest)
    config = read_config(known.config)
    named, named_task = config.pop("model", DEFAULT_MODEL), config.pop("task", None)
    model = with_task(load_model(known.model or str(named)), known.task or named_task)
    flags = [name.replace("_", "-") for name in vars(known) if name not in _NO_FLAGS]
    try:
        params = build_params(config, overrides, flags, model.params)
    except ParamsError as error:
        raise ParamsError([*problems, *error.problems]) from error
    if problems:
        raise ParamsError(problems)
    return model, params, {**config, **dict(overrides)}


# --- `doctor env`: what a job would train on here, and why. It connects only to the TPU's port and
# the Cloud TPU API, asks once, and loads no TensorFlow.

_ASK_ONCE = endpoint.Wait(tries=1, interval=0.0)
_NO_SETTING = "no setting names a TPU"


def add_doctor(modes: Any) -> None:
    """Add the parser."""
    doctor = modes.add_parser("doctor", help="examine the environment", allow_abbrev=False)
    subjects = doctor.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    env = add_command(
        subjects,
        "env",
        lambda known: partial(_examine, known),
        help="what a job would train on here, and why",
        description="Report what a job would train on here, and why. Exit code 1: a job could not "
        "start.",
    )
    for flag in ("--tpu", "--tpu-project", "--tpu-zone"):
        env.add_argument(flag, help="as for train")
    env.add_argument("--json", action="store_true", help="print the same as JSON")


def _examine(known: argparse.Namespace) -> int:
    # The one report says it all, and with --json it has to stand alone.
    logging.getLogger("tpu_training").setLevel(logging.ERROR)
    found = examine(known.tpu, known.tpu_project, known.tpu_zone, os.environ)
    print(json.dumps(found.as_json(), indent=2) if known.json else found, flush=True)
    return EXIT_FAILURE if found.problems else 0


@dataclass(frozen=True)
class Setting:
    """A setting that can name a TPU. `state` is `taken`, `passed over for …` or `not set`."""

    name: str
    value: str
    state: str


@dataclass(frozen=True)
class Environment:
    """The findings. `workers` maps an address to why the worker is silent, None if it answers."""

    machine: Machine
    settings: tuple[Setting, ...]
    choice: str
    reason: str
    workers: Mapping[str, str | None]
    problems: tuple[str, ...]
    hints: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the findings for programs."""
        return dataclasses.asdict(self) | {"ok": not self.problems}

    def __str__(self) -> str:
        installed = " ".join(f"{name} {v}" for name, v in self.machine.libraries.items())
        return "\n".join([
            f"this machine: {self.machine}",
            f"tensorflow: {installed or 'not installed'}",
            "settings that can name a TPU, the first one wins:",
            *(
                f"  {s.name:<33}{s.state}{f': {s.value}' if s.value else ''}"
                for s in self.settings
            ),
            f"a job would train on: {self.choice}",
            f"because: {self.reason}",
            *(f"worker grpc://{w}: {why or 'answers'}" for w, why in self.workers.items()),
            *(f"hint: {hint}" for hint in self.hints),
            *(f"problem: {problem}" for problem in self.problems),
        ])  # fmt: skip


def examine(
    tpu: str | None,
    project: str | None,
    zone: str | None,
    environ: Mapping[str, str],
    machine: Machine | None = None,
    probe: Callable[[str], str | None] = endpoint.why_silent,
    look_up: Callable[[Target, endpoint.Wait], Workers] = cloud_tpu.resolve,
) -> Environment:
    """Find out what a job started here with these arguments would train on.

    Wrong values, a missing TPU and silent workers become `problems` of the result. Tests replace
    `machine`, `probe` and `look_up`.
    """
    machine = machine or find_machine()
    problems: list[str] = []
    target: Target = NoTpu()
    workers: Workers | None = None
    try:
        target = endpoint.find_target(tpu, project, zone, environ)
        workers = cloud_tpu.choose_local(look_up(target, _ASK_ONCE), machine, split_cpu=False)
        if isinstance(workers, LocalTpu):
            check_library(environ)
    except TrainingError as error:
        problems.append(str(error))
    # A worker that is silent now would keep a job waiting, perhaps in vain.
    answers = {a: probe(a) for a in workers.addresses} if isinstance(workers, Addresses) else {}
    problems += [f"grpc://{worker}: {why}" for worker, why in answers.items() if why]
    if machine.tensorflow is None:
        known = find_known_error(NO_TENSORFLOW)
        problems.append(f"TensorFlow is not installed: {known.cure if known else ''}")
    choice, reason = _choice(workers, target, machine)
    hints = tuple(_hints(target, machine, environ))
    settings = tuple(_settings(tpu, environ))
    return Environment(machine, settings, choice, reason, answers, tuple(problems), hints)


def _settings(tpu: str | None, environ: Mapping[str, str]) -> Iterator[Setting]:
    """Yield all settings that can name a TPU, in the order in which they are asked."""
    given = {"--tpu": tpu or "", **{name: environ.get(name, "") for name in endpoint.VARIABLES}}
    first = next((name for name, value in given.items() if value), None)
    for name, value in given.items():
        state = "taken" if name == first else f"passed over for {first}" if value else "not set"
        yield Setting(name, value, state)


def _choice(workers: Workers | None, target: Target, machine: Machine) -> tuple[str, str]:
    """Describe the expected strategy and the reason for it, without connecting."""
    if workers is None:
        return "nothing: see the problem", "the setting that names the TPU can't be used as it is"
    if isinstance(workers, Addresses):
        looked_up = (
            " and the Cloud TPU API gave its address" if isinstance(target, NamedTpu) else ""
        )
        count = len(workers.addresses)
        return (
            f"the TPU at {workers.url} ({count} worker{'s' if count > 1 else ''}) by TPUStrategy; "
            "by MirroredStrategy if the worker turns out to have no TPU",
            f"{workers.source} names it{looked_up}",
        )
    if isinstance(workers, LocalTpu):
        return "this machine's TPU by TPUStrategy", workers.reason
    if machine.gpus:
        plural = "s" if machine.gpus > 1 else ""
        return f"{machine.gpus} GPU{plural} by MirroredStrategy", _NO_SETTING
    return "this machine's CPU by MirroredStrategy", f"{_NO_SETTING} and there is no GPU"


def _hints(target: Target, machine: Machine, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield what a job would do without complaint, though it is hardly what is wanted."""
    if not isinstance(target, NoTpu):
        return
    if machine.tpu_chips and not machine.has_libtpu:
        yield (
            "this machine has TPU chips, but no libtpu that drives them: pip install "
            "tensorflow-tpu of the version that you train with, or take a TensorFlow runtime"
        )
    if len(environ.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1:
        yield (
            "this is one host of a slice (TPU_WORKER_HOSTNAMES): name all workers with "
            "--tpu=grpc://HOST:8470,… in their order, or the slice with --tpu=NAME"
        )


# --- The commands for trained models.

_FORMATS = ("saved_model", "tflite")
# Enough to see a loss of a few percent; TFLite takes them one at a time, on a CPU.
_TEST_LIMIT = 2000


def add_export(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "export",
        _build_export,
        help="write the trained model as SavedModel or int8 TFLite",
        description="Write a trained model: as a SavedModel to serve, or as full-integer TFLite "
        "for the Edge TPU: the accuracy that the integers cost is checked, the operations are not.",
    )
    option = parser.add_argument
    option("--model-dir", required=True, help="directory or gs:// URL of the training's results")
    option("--output", required=True, help="directory or gs:// URL to write to")
    option("--format", choices=_FORMATS, default=_FORMATS[0], help="saved_model")
    option(
        "--best",
        action="store_true",
        help="export the best evaluation's checkpoint instead of the newest one",
    )
    option("--batch-size", type=int, help="fixed batch size of the input (default: any number)")
    option("--data", help="data set for tflite (default: the one of the training)")
    option(
        "--test-examples",
        type=int,
        default=_TEST_LIMIT,
        help=f"test examples for measuring tflite's accuracy ({_TEST_LIMIT})",
    )
    option("--model", help="your own model file, if it was moved")


def _build_export(known: argparse.Namespace) -> Command:
    """Check the flags; the checkpoint and the model are read when the command runs."""
    size = known.batch_size
    problems = []
    if size is not None and known.format == "tflite":
        problems.append(f"--batch-size={size}: a tflite model takes one image at a time")
    for flag, value in (("batch-size", size), ("test-examples", known.test_examples)):
        if value is not None and value < 1:
            problems.append(f"--{flag}={value}: must be at least 1")
    if problems:
        raise InputError("; ".join(problems))
    return partial(_export, known)


def _export(known: argparse.Namespace) -> int:
    from tpu_training.serving.export import run_export

    line = run_export(
        known.model_dir,
        known.output,
        known.format,
        known.batch_size,
        known.data,
        known.model,
        known.test_examples,
        known.best,
    )
    print(f"export finished {line}", flush=True)
    return 0


def add_predict(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "predict",
        _build_predict,
        help="predict a data set or image files with a SavedModel",
        description="Predict a data set's test split or image files; write classes and "
        "probabilities as JSON lines.",
    )
    option = parser.add_argument
    option("--saved-model", required=True, help="directory that `tpu-training export` wrote")
    option(
        "--input",
        required=True,
        nargs="+",
        help="directory of a data set, or image files and folders",
    )
    option("--output", required=True, help="NAME.jsonl to write")


def _build_predict(known: argparse.Namespace) -> Command:
    if not known.output.endswith(".jsonl"):
        raise InputError(f"--output={known.output}: expected NAME.jsonl, for JSON lines")
    return partial(_predict, known.saved_model, known.input, known.output)


def _predict(saved_model: str, inputs: Sequence[str], output: str) -> int:
    from tpu_training.serving.model import Predictor, predict_to_file

    examples, accuracy = predict_to_file(Predictor(saved_model), inputs, output)
    right = "" if accuracy is None else f" accuracy={accuracy:.4f}"
    print(f"predict finished examples={examples}{right} output={output}", flush=True)
    return 0
