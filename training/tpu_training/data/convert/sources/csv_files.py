"""Read CSV files with a header, with a label and either pixels or a text in each row."""

import csv
import math
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpu_training.data.convert.source import (
    IMAGE,
    TEXT,
    Feature,
    Options,
    Source,
    number_labels,
    orders,
    pick,
)
from tpu_training.errors import DataError

_LABEL, _TEXT = "label", "text"
_TEST_NAMES = ("test", "val", "validation")
_HEADER_LINES = 1


def matches(path: Path) -> bool:
    """Return whether `path` is a CSV file or a folder with a train.csv."""
    return path.suffix.lower() == ".csv" if path.is_file() else (path / "train.csv").is_file()


def load(path: Path, options: Options) -> Source:
    """Read FILE.csv and split its rows, or read FOLDER/train.csv and FOLDER/test.csv.

    A column `text` (or the one given by --feature) holds texts; without one, every column except
    the label is a pixel of a square image, 0 to 255.
    """
    files = {"train": path} if path.is_file() else _files(path)
    columns = _columns(files["train"])
    label = options.label or _LABEL
    feature = options.feature or (_TEXT if _TEXT in columns else None)
    for file in files.values():
        _check_columns(file, columns, [label, *([feature] if feature else [])])
    read: dict[str, tuple[Any, Any]] = {
        split: _read_texts(file, columns.index(feature), columns.index(label))
        if feature
        else _read_pixels(file, columns.index(label))
        for split, file in files.items()
    }
    labels = number_labels({split: written for split, (_, written) in read.items()}, str(path))
    counts = {split: len(features) for split, (features, _) in read.items()}
    splits = {}
    for split, (source, order) in orders(counts, options, str(path)).items():
        features = read[source][0]
        size = sum(_size(features[row]) for row in order)
        place = _place(files[source])
        splits[split] = pick(order, place, features.__getitem__, labels.splits[source], size)
    name = options.name or path.resolve().stem
    return Source(name, TEXT if feature else IMAGE, labels.classes, splits, labels.names)


def _files(directory: Path) -> dict[str, Path]:
    for name in _TEST_NAMES:
        if (test := directory / f"{name}.csv").is_file():
            return {"train": directory / "train.csv", "test": test}
    raise DataError(f"{directory}: contains train.csv, but no test.csv")


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from csv.reader(file, strict=True)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: can't be read as CSV ({error})") from error


def _columns(path: Path) -> list[str]:
    header = next(_rows(path), None)
    if not header:
        raise DataError(f"{path}: is empty; expected a header row with the names of the columns")
    return header


def _check_columns(path: Path, expected: list[str], needed: list[str]) -> None:
    columns = _columns(path)
    shown = ", ".join(columns[:8]) + (" …" if len(columns) > 8 else "")
    if missing := [name for name in needed if name not in columns]:
        raise DataError(
            f"{path}: there is no column {missing[0]}, only {shown}; name the columns with "
            "--label and, for texts, --feature"
        )
    if columns != expected:
        raise DataError(f"{path}: its columns ({shown}) differ from those of the training file")


def _read_texts(path: Path, at: int, label_at: int) -> tuple[list[str], list[str]]:
    """Return the columns `at` and `label_at`."""
    rows = list(_rows(path))
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise DataError(f"{path}: {len(row)} values in row {number}, expected {len(rows[0])}")
    _refuse_empty(path, len(rows) - _HEADER_LINES)
    texts = rows[_HEADER_LINES:]
    return [row[at] for row in texts], [row[label_at].strip() for row in texts]


def _read_pixels(path: Path, label_at: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images of all columns but `label_at`, and that one."""
    values = _numbers(path)
    return _square(path, np.delete(values, label_at, axis=1)), values[:, label_at].astype(np.int64)


def _size(feature: Feature) -> int:
    return feature.nbytes if isinstance(feature, np.ndarray) else len(feature)


def _numbers(path: Path) -> npt.NDArray[np.float32]:
    """Read all values. Raises DataError that names the first that is not 0 to 255."""
    try:
        with warnings.catch_warnings():
            # numpy only warns about an empty file; below it is an error.
            warnings.simplefilter("ignore")
            values = np.loadtxt(
                path,
                np.float32,
                delimiter=",",
                skiprows=_HEADER_LINES,
                ndmin=2,
                encoding="utf-8-sig",
            )
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: {error}; expected numbers only") from error
    _refuse_empty(path, values.size)
    with np.errstate(invalid="ignore"):
        wrong = np.argwhere(~((values >= 0) & (values <= 255) & (values == np.round(values))))
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(
            f"{path}: {values[row, column]:g} in row {row + 1}, column {column + 1}; pixels and "
            "labels must be whole numbers, 0 to 255"
        )
    return values


def _square(path: Path, pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    for channels in (1, 3):
        side = math.isqrt(pixels.shape[1] // channels)
        if side * side * channels == pixels.shape[1]:
            return pixels.astype(np.uint8).reshape(-1, side, side, channels)
    raise DataError(
        f"{path}: {pixels.shape[1]} pixel columns do not form a square image with one or three "
        "channels; for texts, name the column with --feature"
    )


def _refuse_empty(path: Path, count: int) -> None:
    if not count:
        raise DataError(f"{path}: contains no examples, only a header")


def _place(path: Path) -> Callable[[int], str]:
    return lambda row: f"{path} row {row + 1}"
