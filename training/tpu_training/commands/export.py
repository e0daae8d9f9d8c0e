"""`tpu-training export`: write a trained model in the form that others run."""

import argparse
from functools import partial
from typing import Any

from tpu_training.commands.command import Command, add_command
from tpu_training.errors import InputError

_FORMATS = ("saved_model", "tflite", "onnx")
_TEST_LIMIT = 2000


def add(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "export",
        _build,
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


def _build(known: argparse.Namespace) -> Command:
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
        from tpu_training.errors.extras import require

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
