"""The commands for trained models: `export`, `predict` and `serve`."""

import argparse
import ipaddress
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from tpu_training.commands.arguments import Command, add_command
from tpu_training.errors import InputError

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
