"""`tpu-training predict`: predict a data set or image files with a SavedModel."""

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any

from tpu_training.commands.command import Command, add_command
from tpu_training.errors import InputError

_ENDINGS = (".csv", ".jsonl")


def add(modes: Any) -> None:
    """Add the parser."""
    parser = add_command(
        modes,
        "predict",
        _build,
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


def _build(known: argparse.Namespace) -> Command:
    if not known.output.endswith(_ENDINGS):
        raise InputError(f"--output={known.output}: expected NAME.csv or NAME.jsonl")
    return partial(_predict, known.saved_model, known.input, known.output)


def _predict(saved_model: str, inputs: Sequence[str], output: str) -> int:
    from tpu_training.serving.prediction import Predictor, predict_to_file

    outcome = predict_to_file(Predictor(saved_model), inputs, output)
    accuracy = "" if outcome.accuracy is None else f" accuracy={outcome.accuracy:.4f}"
    print(f"predict finished examples={outcome.examples}{accuracy} output={output}", flush=True)
    return 0
