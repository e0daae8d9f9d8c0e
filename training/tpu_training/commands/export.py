"""`tpu-training export`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpu_training.commands.arguments import add_debug
from tpu_training.commands.command import refuse_rest
from tpu_training.errors import InputError

_FORMATS = ("saved_model", "tflite", "onnx")
_TEST_LIMIT = 2000


@dataclass(frozen=True)
class Export:
    """Write a trained model in the form that others run."""

    model_dir: str
    output: str
    kind: str
    batch: int | None
    data: str | None
    model_file: str | None
    test_limit: int
    best: bool

    def run(self) -> int:
        """Export and print a line that says where to."""
        if self.kind == "onnx":
            from tpu_training.serving.export.onnx import require_tf2onnx

            require_tf2onnx()
        from tpu_training.serving.export.run import run_export

        line = run_export(
            self.model_dir,
            self.output,
            self.kind,
            self.batch,
            self.data,
            self.model_file,
            self.test_limit,
            self.best,
        )
        print(f"export finished {line}", flush=True)
        return 0


def add(modes: Any) -> None:
    """Add the parser."""
    parser = modes.add_parser(
        "export",
        help="write the trained model as SavedModel, int8 TFLite or ONNX",
        description="Write a trained model: as a SavedModel to serve, as "
        "full-integer TFLite for the Edge TPU (checked operation by operation, and for the "
        "accuracy that the integers cost), or as ONNX.",
        allow_abbrev=False,
    )
    parser.add_argument("--model-dir", required=True, help="results' directory or gs:// URL")
    parser.add_argument("--output", required=True, help="directory or gs:// URL to write to")
    parser.add_argument("--format", choices=_FORMATS, default=_FORMATS[0], help="saved_model")
    parser.add_argument(
        "--best", action="store_true", help="the best evaluation's checkpoint, not the newest"
    )
    parser.add_argument(
        "--batch-size", type=int, help="static batch of the input (default: any number)"
    )
    parser.add_argument(
        "--data", help="data set for tflite (default: where it was for the training)"
    )
    parser.add_argument(
        "--test-examples",
        type=int,
        default=_TEST_LIMIT,
        help=f"that tflite's accuracy is measured on ({_TEST_LIMIT})",
    )
    parser.add_argument("--model", help="a model file of your own, if it was moved since")
    add_debug(parser)
    parser.set_defaults(build=_build)


def _build(known: argparse.Namespace, rest: Sequence[str]) -> Export:
    refuse_rest(rest, "export")
    problems = []
    if known.batch_size is not None and known.format == "tflite":
        problems.append(f"--batch-size={known.batch_size}: tflite takes one image at a time")
    for flag, value in (("batch-size", known.batch_size), ("test-examples", known.test_examples)):
        if value is not None and value < 1:
            problems.append(f"--{flag}={value}: must be at least 1")
    if problems:
        raise InputError("; ".join(problems))
    return Export(
        known.model_dir,
        known.output,
        known.format,
        known.batch_size,
        known.data,
        known.model,
        known.test_examples,
        known.best,
    )
