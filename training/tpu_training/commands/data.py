"""`tpu-training data convert` and `tpu-training data inspect`."""

import argparse
import json
from functools import partial
from typing import Any

from tpu_training.commands.command import Command, add_command
from tpu_training.errors import InputError


def add(modes: Any) -> None:
    """Add the parsers."""
    data = modes.add_parser("data", help="prepare data sets", allow_abbrev=False)
    actions = data.add_subparsers(dest="action", required=True, metavar="ACTION")
    convert = add_command(
        actions,
        "convert",
        _build_convert,
        help="write a data set as TFRecord files with a manifest",
    )
    convert.add_argument(
        "--source",
        required=True,
        help="folder with MNIST's IDX files, folder with one folder of images per class, folder "
        "with images/ and masks/, CSV file, .txt file, .conll file, folder written by Hugging "
        "Face's save_to_disk or by TensorFlow Datasets, Parquet files, WebDataset's tar files, a "
        "Python file with a function dataset(split, context), tfds:NAME, or the word digits",
    )
    convert.add_argument("--output", required=True, help="local directory to write to")
    convert.add_argument("--name", help="name of the data set (default: from the source)")
    convert.add_argument("--feature", metavar="COLUMN", help="column of the images or texts")
    convert.add_argument("--label", metavar="COLUMN", help="column of the labels")
    convert.add_argument(
        "--target", metavar="COLUMNS", help="of a CSV file: numbers to learn, instead of a label"
    )
    convert.add_argument(
        "--labels", metavar="COLUMNS", help="likewise: several labels, columns of 0 and 1"
    )
    convert.add_argument(
        "--test-fraction",
        metavar="PART",
        default="0.1",
        help="part for testing if the source has no test split (default: 0.1)",
    )
    convert.add_argument(
        "--validation-fraction",
        metavar="PART",
        help="part of the training examples for a split validation (default: none, or the "
        "source's own)",
    )
    convert.add_argument(
        "--seed", default="0", help="seed of those splits and of the order (default: 0)"
    )
    convert.add_argument(
        "--encoding",
        choices=("raw", "encoded"),
        help="store images as bytes of one size, or as JPEG and PNG (default: as the source does)",
    )
    convert.add_argument("--text-length", default="128", help="token ids per text (default: 128)")
    convert.add_argument("--vocabulary", metavar="FILE", help="BERT's vocab.txt, or one like it")
    convert.add_argument(
        "--vocabulary-size",
        default="8192",
        help="size of a vocabulary made from the texts (default: 8192)",
    )
    inspect = add_command(
        actions,
        "inspect",
        lambda known: partial(_inspect, known.data, known.json, known.grid),
        help="show counts, shapes and classes of a data set; verify its checksums",
    )
    inspect.add_argument("--data", required=True, help="directory or gs:// URL of the data set")
    inspect.add_argument("--json", action="store_true", help="print the same as JSON")
    inspect.add_argument(
        "--grid", metavar="FILE.png", help="also draw the first images of each class"
    )


def _build_convert(known: argparse.Namespace) -> Command:
    from tpu_training.data.convert.conversion import Storage
    from tpu_training.data.convert.source import Options

    if known.output.startswith("gs://"):
        raise InputError(
            f"--output={known.output}: data sets are written locally; give a directory, then copy "
            f"it with `gcloud storage cp DIRECTORY/* {known.output.rstrip('/')}/`"
        )
    fraction = _number("--test-fraction", known.test_fraction, 0.0, 1.0)
    length = _whole("--text-length", known.text_length, 2)
    if sum(value is not None for value in (known.label, known.target, known.labels)) > 1:
        raise InputError("--label, --target and --labels exclude each other; give one of them")
    given = known.validation_fraction
    options = Options(
        known.name,
        known.feature,
        known.label,
        fraction,
        _whole("--seed", known.seed, 0),
        target=_names(known.target),
        labels=_names(known.labels),
        length=length,
        validation_fraction=0.0
        if given is None
        else _number("--validation-fraction", given, 0.0, 1.0),
    )
    storage = Storage(
        known.encoding,
        length,
        known.vocabulary,
        _whole("--vocabulary-size", known.vocabulary_size, 8),
    )

    def run() -> int:
        from tpu_training.data.convert.conversion import convert

        manifest = convert(known.source, known.output, options, storage)
        print(f"data convert finished data={manifest.name} output={known.output}", flush=True)
        return 0

    return run


def _inspect(data: str, as_json: bool, grid: str | None) -> int:
    """Print what is in it; DataError when a file is not what its checksum says."""
    from tpu_training.data.inspection import inspect

    found = inspect(data, grid)
    print(json.dumps(found.as_json(), indent=2) if as_json else found, flush=True)
    return 0


def _names(text: str | None) -> tuple[str, ...]:
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def _number(flag: str, text: str, low: float, high: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not low < number < high:
        raise InputError(f"{flag}={text}: expected a number between {low:g} and {high:g}")
    return number


def _whole(flag: str, text: str, low: int) -> int:
    if not text.isdecimal() or int(text) < low:
        raise InputError(f"{flag}={text}: expected a whole number, at least {low}")
    return int(text)
