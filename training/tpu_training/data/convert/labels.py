"""Labels as they are written, turned into the numbers of classes."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tpu_training.errors import DataError
from tpu_training.models.spec import CLASS, LABELS, NUMBERS

# (split, position) -> where it is, for a message
Place = Callable[[str, int], str]
_EMPTY = ("", "nan", "none", "null")
_MOST_NAMED = 10

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Labels:
    """The labels of several splits as numbers, and the names of the classes if they have any."""

    classes: int
    splits: Mapping[str, npt.NDArray[np.generic]]
    names: tuple[str, ...] = field(default=())
    targets: str = CLASS


def number_labels(splits: Mapping[str, Sequence[str]], place: Place) -> Labels:
    """Turn written labels into numbers from 0, without a class that has no training example.

    Whole numbers from 0 stay. Others, such as 1 to 5, are numbered in their order and words by the
    alphabet; their classes are called as they were written.

    Raises:
        DataError: A label is empty, negative, a fraction, or missing from the training split.
    """
    numeric = all(_number(label) is not None for label in set().union(*splits.values()))
    for split, written in splits.items():
        for position, label in enumerate(written):
            if reason := _why_wrong(label, numeric):
                raise DataError(f"{place(split, position)}: {reason}")
    if numeric:
        splits = {split: [f"{_number(label):.0f}" for label in v] for split, v in splits.items()}
    names = sorted(set(splits["train"]), key=int if numeric else None)
    index = {name: number for number, name in enumerate(names)}
    numbers = {}
    for split, written in splits.items():
        for position, label in enumerate(written):
            if label not in index:
                raise DataError(
                    f"{place(split, position)}: label {label!r} is not among the training "
                    f"split's {len(names)}: {_some(names)}"
                )
        numbers[split] = np.array([index[label] for label in written], np.int64)
    if numeric and names == [str(number) for number in range(len(names))]:
        return Labels(len(names), numbers)
    if numeric:
        logger.info("data: the labels %s become the classes 0 to %d", _some(names), len(names) - 1)
    return Labels(len(names), numbers, tuple(names))


def read_targets(
    splits: Mapping[str, Sequence[Sequence[str]]], names: Sequence[str], targets: str, place: Place
) -> Labels:
    """Turn the written columns called `names` into numbers or into labels of 0 and 1.

    Raises:
        DataError: A value is no number, or a label other than 0 and 1; the message names its place.
    """
    read: dict[str, npt.NDArray[np.generic]] = {}
    for split, rows in splits.items():
        values = np.zeros((len(rows), len(names)), np.float32)
        for position, row in enumerate(rows):
            for column, text in enumerate(row):
                number = _number(text)
                wrong = number is None or not math.isfinite(number)
                if wrong or (targets == LABELS and number not in (0, 1)):
                    expected = "0 or 1" if targets == LABELS else "a number"
                    raise DataError(
                        f"{place(split, position)}: {names[column]} is {text!r}, expected "
                        f"{expected}"
                    )
                values[position, column] = number
        read[split] = values if targets == NUMBERS else values.astype(np.int64)
    return Labels(len(names), read, tuple(names), targets)


def check_labels(splits: dict[str, npt.NDArray[np.int64]], classes: int, place: str) -> None:
    """Raise DataError that names the first label outside 0 to `classes` - 1."""
    for split, labels in splits.items():
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if len(wrong):
            raise DataError(
                f"{place}: label {labels[wrong[0]]} at position {wrong[0]} of the split {split}, "
                f"expected 0 to {classes - 1}"
            )


def _why_wrong(label: str, numeric: bool) -> str:
    """Say what is wrong with `label`, if anything; `numeric` is whether all are numbers."""
    if label.lower() in _EMPTY:
        return "the label is empty; fill it in or remove the row"
    number = _number(label)
    if numeric and number is not None and (number < 0 or not number.is_integer()):
        return f"label {label}; labels must be whole numbers from 0, or words"
    return ""


def _number(label: str) -> float | None:
    try:
        return float(label)
    except ValueError:
        return None


def _some(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
