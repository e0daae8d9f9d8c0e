"""Read CSV files with a header, with a label and either pixels or a text in each row."""

import csv
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tpu_training.data.convert.source import (
    IMAGE,
    TEXT,
    Labels,
    Options,
    Source,
    number_labels,
    orders,
    pick,
    read_targets,
)
from tpu_training.errors import DataError
from tpu_training.models.spec import LABELS, NUMBERS

Pixels = npt.NDArray[np.float32]

_LABEL, _TEXT = "label", "text"
_TEST_NAMES = ("test", "val", "validation")
_HEADER_LINES = 1


def matches(path: Path) -> bool:
    """Return whether `path` is a CSV file or a folder with a train.csv."""
    return path.suffix.lower() == ".csv" if path.is_file() else (path / "train.csv").is_file()


def load(path: Path, options: Options) -> Source:
    """Read FILE.csv and split its rows, or read FOLDER/train.csv and FOLDER/test.csv.

    A column `text` (or the one given by --feature) holds texts; without one, every column except
    the label, or the targets, is a pixel of a square image, 0 to 255.
    """
    files = {"train": path} if path.is_file() else _files(path)
    columns = _columns(files["train"])
    learnt = options.columns or (options.label or _LABEL,)
    feature = options.feature or (_TEXT if _TEXT in columns else None)
    for file in files.values():
        _check_columns(file, columns, [*learnt, *([feature] if feature else [])])
    at = [columns.index(name) for name in learnt]
    read: dict[str, tuple[Any, list[list[str]]]] = {
        split: _read_texts(file, columns.index(feature), at) if feature else _read_pixels(file, at)
        for split, file in files.items()
    }
    labels = _labels({split: rows for split, (_, rows) in read.items()}, files, options)
    counts = {split: len(features) for split, (features, _) in read.items()}
    splits = {}
    for split, (source, order) in orders(counts, options, str(path)).items():
        features = read[source][0]
        place = _place(files[source])
        splits[split] = pick(order, place, features.__getitem__, labels.splits[source])
    name = options.name or path.resolve().stem
    kind = TEXT if feature else IMAGE
    return Source(name, kind, labels.classes, splits, labels.names, labels.targets)


def _labels(
    written: Mapping[str, list[list[str]]], files: Mapping[str, Path], options: Options
) -> Labels:
    """Turn the written columns into classes, or into numbers or labels."""

    def place(split: str, row: int) -> str:
        return _place(files[split])(row)

    if options.columns:
        targets = NUMBERS if options.target else LABELS
        return read_targets(written, options.columns, targets, place)
    return number_labels(
        {split: [row[0] for row in rows] for split, rows in written.items()}, place
    )


def _files(directory: Path) -> dict[str, Path]:
    others = [directory / f"{name}.csv" for name in _TEST_NAMES]
    if found := [path for path in others if path.is_file()]:
        files = (directory / "train.csv", *found)
        return dict(zip(("train", "test", "validation"), files, strict=False))
    raise DataError(f"{directory}: contains train.csv, but no test.csv")


def _rows(path: Path) -> Iterator[list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield from csv.reader(file, strict=True)
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except (OSError, csv.Error) as error:
        raise DataError(f"{path}: can't be read as CSV ({error})") from error


def _not_utf8(path: Path) -> DataError:
    """Return the error for the first line that is not UTF-8, with the command that mends it."""
    content = path.read_bytes()
    wide = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    encoding = "UTF-16" if wide else "LATIN1"
    line = 1
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line += content.count(b"\n", 0, error.start)
    return DataError(
        f"{path}: line {line} is not UTF-8; save the file as UTF-8, or convert it: "
        f"`iconv -f {encoding} -t UTF-8 {path.name} > utf8.csv`"
    )


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


def _read_texts(path: Path, at: int, learnt: list[int]) -> tuple[list[str], list[list[str]]]:
    """Return the columns `at` and `learnt`."""
    rows = list(_rows(path))
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise DataError(f"{path}: {len(row)} values in row {number}, expected {len(rows[0])}")
    _refuse_empty(path, len(rows) - _HEADER_LINES)
    texts = rows[_HEADER_LINES:]
    return [row[at] for row in texts], [[row[i].strip() for i in learnt] for row in texts]


def _read_pixels(path: Path, learnt: list[int]) -> tuple[npt.NDArray[np.uint8], list[list[str]]]:
    """Return the images of all columns but `learnt`, and those as they are written."""
    written: dict[int, list[str]] = {column: [] for column in learnt}

    def note(column: int, text: str) -> float:
        written[column].append(text.strip().strip('"'))
        return 0.0

    values = _numbers(path, {column: partial(note, column) for column in learnt})
    rows = [list(row) for row in zip(*written.values(), strict=True)]
    return _square(path, np.delete(values, learnt, axis=1)), rows


def _numbers(path: Path, converters: Mapping[int | str, Callable[[str], float]]) -> Pixels:
    """Read all values. Raises DataError that names the first that is not 0 to 255."""
    try:
        with warnings.catch_warnings():
            # numpy only warns about an empty file; below it is an error.
            warnings.simplefilter("ignore")
            values: Pixels = np.loadtxt(
                path,
                np.float32,
                delimiter=",",
                skiprows=_HEADER_LINES,
                ndmin=2,
                encoding="utf-8-sig",
                converters=converters,
            )
    except UnicodeDecodeError as error:
        raise _not_utf8(path) from error
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path}: {_from_one(str(error))}; pixels must be numbers; for texts, name the column "
            "with --feature"
        ) from error
    _refuse_empty(path, values.size)
    with np.errstate(invalid="ignore"):
        wrong = np.argwhere(~((values >= 0) & (values <= 255) & (values == np.round(values))))
    if len(wrong):
        row, column = wrong[0].tolist()
        name = dict(enumerate(_columns(path))).get(column, column + 1)
        raise DataError(
            f"{path}: column {name} has {values[row, column]:g} in row {row + 1}; "
            "features are pixels, whole numbers from 0 to 255, or the text column that --feature "
            "names; name columns of numbers to learn with --target; other numbers as features need "
            "a program of your own"
        )
    return values


def _from_one(text: str) -> str:
    """Count rows from 1, as numpy does in its other messages."""
    text = re.sub(r"float32 at row (\d+)", lambda row: f"float32 in row {int(row[1]) + 1}", text)
    return text.rstrip(".")


def _square(path: Path, pixels: Pixels) -> npt.NDArray[np.uint8]:
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
