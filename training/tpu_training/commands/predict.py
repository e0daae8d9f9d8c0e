"""`tpu-training predict`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpu_training.commands.arguments import add_debug
from tpu_training.commands.command import refuse_rest
from tpu_training.errors import InputError

_ENDINGS = (".csv", ".jsonl")


@dataclass(frozen=True)
class Predict:
    """Predict a data set or image files with a SavedModel."""

    saved_model: str
    inputs: tuple[str, ...]
    output: str

    def run(self) -> int:
        """Write the predictions and print a line that sums them up."""
        from tpu_training.serving.batch import predict_to_file
        from tpu_training.serving.predictor import Predictor

        outcome = predict_to_file(Predictor(self.saved_model), self.inputs, self.output)
        accuracy = "" if outcome.accuracy is None else f" accuracy={outcome.accuracy:.4f}"
        print(
            f"predict finished examples={outcome.examples}{accuracy} output={self.output}",
            flush=True,
        )
        return 0


def add(modes: Any) -> None:
    """Add the parser."""
    parser = modes.add_parser(
        "predict",
        help="predict a data set or image files with a SavedModel",
        description="Write the classes and probabilities of a data set's test part, or of image "
        "files, as CSV or JSON lines.",
        allow_abbrev=False,
    )
    parser.add_argument("--saved-model", required=True, help="what `tpu-training export` wrote")
    parser.add_argument(
        "--input", required=True, nargs="+", help="a data set's directory, or image files, folders"
    )
    parser.add_argument("--output", required=True, help="NAME.csv or NAME.jsonl to write")
    add_debug(parser)
    parser.set_defaults(build=_build)


def _build(known: argparse.Namespace, rest: Sequence[str]) -> Predict:
    refuse_rest(rest, "predict")
    if not known.output.endswith(_ENDINGS):
        raise InputError(f"--output={known.output}: expected NAME.csv or NAME.jsonl")
    return Predict(known.saved_model, tuple(known.input), known.output)
