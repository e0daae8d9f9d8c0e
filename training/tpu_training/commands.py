"""The arguments that describe a job: its TPU, model, data, results and parameters."""

from __future__ import annotations

import argparse
import dataclasses
import ipaddress
import json
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from tpu_training.cluster.cloud_tpu import choose_local, resolve
from tpu_training.cluster.endpoint import (
    VARIABLES,
    Addresses,
    LocalTpu,
    NamedTpu,
    NoTpu,
    Target,
    Wait,
    find_target,
    why_silent,
)
from tpu_training.cluster.machine import Machine, check_library, find_machine
from tpu_training.errors import EXIT_FAILURE, InputError, ParamsError, TrainingError
from tpu_training.errors.catalog import NO_TENSORFLOW, find_known_error
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


# --- `tpu-training doctor env`: say what a job would train on here, and why.
#
# Connects only to the TPU's port and the Cloud TPU API, asks once, and loads no TensorFlow.

_ASK_ONCE = Wait(tries=1, interval=0.0)


def add_doctor(modes: Any) -> None:
    """Add the parser."""
    doctor = modes.add_parser("doctor", help="examine the environment", allow_abbrev=False)
    subjects = doctor.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    env = add_command(
        subjects,
        "env",
        _build_doctor,
        help="what a job would train on here, and why",
        description="Report what a job would train on here, and why. Exit code 1: a job could not "
        "start.",
    )
    for flag in ("--tpu", "--tpu-project", "--tpu-zone"):
        env.add_argument(flag, help="as for train")
    env.add_argument("--json", action="store_true", help="print the same as JSON")


def _build_doctor(known: argparse.Namespace) -> Command:
    return partial(_examine, known.tpu, known.tpu_project, known.tpu_zone, known.json)


def _examine(tpu: str | None, project: str | None, zone: str | None, as_json: bool) -> int:

    # The one report says it all, and with --json it has to stand alone.
    logging.getLogger("tpu_training").setLevel(logging.ERROR)
    found = examine(tpu, project, zone, os.environ)
    print(json.dumps(found.as_json(), indent=2) if as_json else found, flush=True)
    return EXIT_FAILURE if found.problems else 0


@dataclass(frozen=True)
class Setting:
    """A setting that can name a TPU. `state` is `taken`, `passed over` or `not set`."""

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
        lines = [f"this machine: {self.machine}", f"tensorflow: {self._tensorflow()}"]
        lines += ["settings that can name a TPU, the first one wins:"]
        lines += [
            f"  {s.name:<33}{s.state}{f': {s.value}' if s.value else ''}" for s in self.settings
        ]
        lines += [f"a job would train on: {self.choice}", f"because: {self.reason}"]
        lines += [f"worker grpc://{w}: {why or 'answers'}" for w, why in self.workers.items()]
        lines += [f"hint: {hint}" for hint in self.hints]
        lines += [f"problem: {problem}" for problem in self.problems]
        return "\n".join(lines)

    def _tensorflow(self) -> str:
        found = " ".join(f"{name} {version}" for name, version in self.machine.libraries.items())
        return found or "not installed"


def examine(
    tpu: str | None,
    project: str | None,
    zone: str | None,
    environ: Mapping[str, str],
    machine: Machine | None = None,
    probe: Callable[[str], str | None] = why_silent,
    look_up: Callable[[Target, Wait], Addresses | LocalTpu | NoTpu] = resolve,
) -> Environment:
    """Find out what a job started here with these arguments would train on.

    Wrong values, a missing TPU and silent workers become `problems` of the result. Tests replace
    `machine`, `probe` and `look_up`.
    """
    machine = machine or find_machine()
    problems: list[str] = []
    target: Target = NoTpu()
    workers: Addresses | LocalTpu | NoTpu | None = None
    try:
        target = find_target(tpu, project, zone, environ)
        workers = choose_local(look_up(target, _ASK_ONCE), machine, split_cpu=False)
        if isinstance(workers, LocalTpu):
            check_library(environ)
    except TrainingError as error:
        problems.append(str(error))
    answers = {a: probe(a) for a in workers.addresses} if isinstance(workers, Addresses) else {}
    problems += [f"grpc://{worker}: {why}" for worker, why in answers.items() if why]
    if machine.tensorflow is None:
        problems.append(f"TensorFlow is not installed: {_install_tensorflow()}")
    choice, reason = _choice(workers, target, machine)
    return Environment(
        machine=machine,
        settings=_settings(tpu, environ),
        choice=choice,
        reason=reason,
        workers=answers,
        problems=tuple(problems),
        hints=tuple(_hints(target, machine, environ)),
    )


def _install_tensorflow() -> str:
    known = find_known_error(NO_TENSORFLOW)
    assert known
    return known.cure


def _settings(tpu: str | None, environ: Mapping[str, str]) -> tuple[Setting, ...]:
    given = {"--tpu": tpu or "", **{name: environ.get(name, "") for name in VARIABLES}}
    first = next((name for name, value in given.items() if value), None)
    settings = []
    for name, value in given.items():
        state = "taken" if name == first else f"passed over for {first}" if value else "not set"
        settings.append(Setting(name, value, state))
    return tuple(settings)


def _choice(
    workers: Addresses | LocalTpu | NoTpu | None, target: Target, machine: Machine
) -> tuple[str, str]:
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
        return f"{machine.gpus} GPU{plural} by MirroredStrategy", "no setting names a TPU"
    return "this machine's CPU by MirroredStrategy", "no setting names a TPU and there is no GPU"


def _hints(target: Target, machine: Machine, environ: Mapping[str, str]) -> list[str]:
    hints = []
    if isinstance(target, NoTpu) and machine.tpu_chips and not machine.has_libtpu:
        hints.append(
            "this machine has TPU chips, but no libtpu that drives them: pip install "
            "tensorflow-tpu of the version that you train with, or take a TensorFlow runtime"
        )
    if len(environ.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1 and isinstance(target, NoTpu):
        hints.append(
            "this is one host of a slice (TPU_WORKER_HOSTNAMES): name all workers with "
            "--tpu=grpc://HOST:8470,… in their order, or the slice with --tpu=NAME"
        )
    return hints


# --- The commands for trained models: `export`, `predict` and `serve`.

_FORMATS = ("saved_model", "tflite", "onnx")
_TEST_LIMIT = 2000
_ENDINGS = (".csv", ".jsonl")
# TensorFlow Serving's REST port.
_PORT = 8501
LOOPBACK = str(ipaddress.IPv4Address(socket.INADDR_LOOPBACK))


def add_export(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "export",
        _build_export,
        help="write the trained model as SavedModel, int8 TFLite or ONNX",
        description="Write a trained model: as a SavedModel to serve, as full-integer TFLite for "
        "the Edge TPU (the accuracy that the integers cost is checked, the operations are not), or "
        "as ONNX.",
    )
    parser.add_argument(
        "--model-dir", required=True, help="directory or gs:// URL of the training's results"
    )
    parser.add_argument("--output", required=True, help="directory or gs:// URL to write to")
    parser.add_argument("--format", choices=_FORMATS, default=_FORMATS[0], help="saved_model")
    parser.add_argument(
        "--best",
        action="store_true",
        help="export the best evaluation's checkpoint instead of the newest one",
    )
    parser.add_argument(
        "--batch-size", type=int, help="fixed batch size of the input (default: any number)"
    )
    parser.add_argument("--data", help="data set for tflite (default: the one of the training)")
    parser.add_argument(
        "--test-examples",
        type=int,
        default=_TEST_LIMIT,
        help=f"test examples for measuring tflite's accuracy ({_TEST_LIMIT})",
    )
    parser.add_argument("--model", help="your own model file, if it was moved")


def _build_export(known: argparse.Namespace) -> Command:
    problems = []
    if known.batch_size is not None and known.format == "tflite":
        problems.append(
            f"--batch-size={known.batch_size}: a tflite model takes one image at a time"
        )
    for flag, value in (("batch-size", known.batch_size), ("test-examples", known.test_examples)):
        if value is not None and value < 1:
            problems.append(f"--{flag}={value}: must be at least 1")
    if problems:
        raise InputError("; ".join(problems))
    return partial(_export, known)


def _export(known: argparse.Namespace) -> int:
    if known.format == "onnx":
        from tpu_training.errors import require

        require("tf2onnx", "tf2onnx", "onnx", "--format=onnx")
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
        "probabilities as CSV or JSON lines.",
    )
    parser.add_argument(
        "--saved-model", required=True, help="directory that `tpu-training export` wrote"
    )
    parser.add_argument(
        "--input",
        required=True,
        nargs="+",
        help="directory of a data set, or image files and folders",
    )
    parser.add_argument("--output", required=True, help="NAME.csv or NAME.jsonl to write")


def _build_predict(known: argparse.Namespace) -> Command:
    if not known.output.endswith(_ENDINGS):
        raise InputError(f"--output={known.output}: expected NAME.csv or NAME.jsonl")
    return partial(_predict, known.saved_model, known.input, known.output)


def _predict(saved_model: str, inputs: Sequence[str], output: str) -> int:
    from tpu_training.serving.prediction import Predictor, predict_to_file

    outcome = predict_to_file(Predictor(saved_model), inputs, output)
    accuracy = "" if outcome.accuracy is None else f" accuracy={outcome.accuracy:.4f}"
    print(f"predict finished examples={outcome.examples}{accuracy} output={output}", flush=True)
    return 0


def add_serve(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "serve",
        _build_serve,
        help="answer TensorFlow Serving's REST requests from a SavedModel",
        description="Serve an exported SavedModel over TensorFlow Serving's REST API: POST "
        "/v1/models/NAME:predict, GET /v1/models/NAME and /v1/models/NAME/metadata.",
    )
    parser.add_argument(
        "--saved-model", required=True, help="directory that `tpu-training export` wrote"
    )
    parser.add_argument("--name", default="model", help="the model's name in the URL (model)")
    parser.add_argument(
        "--host", help="address to listen on (default: reachable from this machine only)"
    )
    parser.add_argument(
        "--port", type=int, default=_PORT, help=f"port; 0 chooses a free one ({_PORT})"
    )


def _build_serve(known: argparse.Namespace) -> Command:
    if not 0 <= known.port < 65536:
        raise InputError(f"--port={known.port}: expected 0 to 65535")
    return partial(_serve, known.saved_model, known.name, known.host, known.port)


def _serve(saved_model: str, name: str, host: str | None, port: int) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    host = host or LOOPBACK
    # Before TensorFlow takes seconds to load.
    with _named(host, port), socket.create_server((host, port)):
        pass
    from tpu_training.serving.prediction import Predictor
    from tpu_training.serving.server import RestApi, create_server

    predictor = Predictor(saved_model)
    with _named(host, port):
        server = create_server(RestApi(name, predictor), host, port)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with server:
        print(
            f"serving {name} version {predictor.version} at "
            f"http://{host}:{server.server_port}/v1/models/{name}",
            flush=True,
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print("serving ended", flush=True)
    return 0


@contextmanager
def _named(host: str, port: int) -> Iterator[None]:
    """Turn what the system says of an address into wrong input."""
    try:
        yield
    except OSError as error:
        raise InputError(f"--host={host} --port={port}: {error.strerror or error}") from error
