"""Read data sets that Hugging Face's library `datasets` wrote with save_to_disk."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tpu_training.data.convert.source import (
    IMAGE,
    TEXT,
    Examples,
    Feature,
    Labels,
    Options,
    Source,
    check_labels,
    number_labels,
    orders,
    pick,
    refuse_outside,
    rows_of,
)
from tpu_training.errors import DataError
from tpu_training.errors.extras import require

# The first that is there is for testing, the next one for validation.
_TEST_NAMES = ("test", "validation", "val")
_USUAL_TEXTS = ("text", "sentence", "content")
_USUAL_LABELS = ("label", "labels", "fine_label")


def matches(directory: Path) -> bool:
    """Return whether save_to_disk wrote `directory`, with or without splits."""
    return any((directory / name).is_file() for name in ("dataset_dict.json", "state.json"))


def load(directory: Path, options: Options) -> Source:
    """Read a column of images or texts and one of labels.

    Without a split `test` or `validation`, part of the training split is used for testing.
    """
    library = require("datasets", "datasets", "datasets", f"--source={directory}")
    try:
        loaded = library.load_from_disk(str(directory))
    except Exception as error:
        raise DataError(f"{directory}: datasets can't load it ({error})") from error
    tables = _tables(directory, loaded)
    columns = tables["train"].features
    feature = options.feature or _feature_column(directory, library, columns)
    label = options.label or _label_column(directory, columns)
    for column in (feature, label):
        if column not in columns:
            raise DataError(f"{directory}: there is no column {column}, only {', '.join(columns)}")
    is_image = isinstance(columns[feature], library.Image)
    if not is_image and getattr(columns[feature], "dtype", None) not in ("string", "large_string"):
        raise DataError(
            f"{directory}: column {feature} is {columns[feature]}, expected images or strings"
        )
    if is_image:
        undecoded = library.Image(decode=False)
        tables = {s: table.cast_column(feature, undecoded) for s, table in tables.items()}
    labels = _labels(directory, tables, label)
    counts = {split: len(table) for split, table in tables.items()}
    splits: dict[str, Examples] = {}
    for split, (source, order) in orders(counts, options, str(directory)).items():
        table = tables[source]
        read = _reader(directory, table, feature, is_image)
        place = rows_of(f"{directory} {source}")
        splits[split] = pick(order, place, read, labels.splits[source])
    name = options.name or directory.resolve().name
    return Source(name, IMAGE if is_image else TEXT, labels.classes, splits, labels.names)


def _tables(directory: Path, loaded: Any) -> dict[str, Any]:
    """Return the tables of `train` and, if there is one, `test`."""
    if not hasattr(loaded, "keys"):
        tables = {"train": loaded}
    elif "train" not in loaded:
        raise DataError(f"{directory}: there is no split train, only {', '.join(loaded)}")
    else:
        tables = {"train": loaded["train"]}
        found = [name for name in _TEST_NAMES if name in loaded]
        for split, name in zip(("test", "validation"), found, strict=False):
            tables[split] = loaded[name]
    for split, table in tables.items():
        if not len(table):
            raise DataError(f"{directory}: the split {split} is empty")
    return tables


def _feature_column(directory: Path, library: Any, columns: dict[str, Any]) -> str:
    images = [name for name, kind in columns.items() if isinstance(kind, library.Image)]
    texts = [name for name, kind in columns.items() if getattr(kind, "dtype", "") == "string"]
    usual = [name for name in _USUAL_TEXTS if name in texts]
    for found in (images, usual, texts):
        if len(found) == 1 or (found is usual and found):
            return found[0]
    raise DataError(
        f"{directory}: which of the columns {', '.join(columns)} holds the images or texts? "
        "Name it with --feature"
    )


def _label_column(directory: Path, columns: dict[str, Any]) -> str:
    named = [name for name, kind in columns.items() if hasattr(kind, "str2int")]
    usual = [name for name in _USUAL_LABELS if name in columns]
    for found in (usual, named):
        if found:
            return found[0]
    raise DataError(
        f"{directory}: which of the columns {', '.join(columns)} holds the labels? Name it with "
        "--label"
    )


def _labels(directory: Path, tables: dict[str, Any], column: str) -> Labels:
    kind = tables["train"].features[column]
    if names := getattr(kind, "names", None):
        numbers = {s: np.asarray(table[column][:], np.int64) for s, table in tables.items()}
        check_labels(numbers, len(names), f"{directory} {column}")
        return Labels(len(names), numbers, tuple(names))
    written = {s: [str(value) for value in table[column][:]] for s, table in tables.items()}
    return number_labels(written, lambda split, row: f"{directory} {split} row {row}, {column}")


def _reader(directory: Path, table: Any, column: str, is_image: bool) -> Callable[[int], Feature]:
    def text(row: int) -> str:
        return str(table[row][column] or "")

    def image(row: int) -> bytes:
        value = table[row][column]
        if value and value["bytes"]:
            return bytes(value["bytes"])
        path = directory / ((value and value["path"]) or "")
        refuse_outside((path,), directory)
        if path.is_file():
            return path.read_bytes()
        raise DataError(f"{directory}: row {row} of column {column} holds no image")

    return image if is_image else text
