"""A source before conversion: its examples, its labels, and the options for reading it."""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tpu_training.errors import DataError, InputError
from tpu_training.models import spec as specs

# An image as unsigned bytes (height, width[, channels]), a JPEG or PNG file, a text or its
# token ids, any other array, or several by name.
Feature = npt.NDArray[Any] | bytes | str | Mapping[str, npt.NDArray[Any]]
# A class, or what else the targets are: labels, numbers, classes of tokens, a mask, several.
Target = int | npt.NDArray[np.generic] | Mapping[str, npt.NDArray[Any]]
IMAGE, TEXT, ARRAY = "image", "text", "array"
# The token of id 0.
PADDING = "[PAD]"
# (split, position) -> where it is, for a message
Place = Callable[[str, int], str]
# What spreadsheets and pandas write for a value that isn't there.
_EMPTY = ("", "nan", "none", "null")
_MOST_NAMED = 10

logger = logging.getLogger(__name__)


class Example(NamedTuple):
    """One example; `place` locates it in error messages, such as its file's path."""

    place: str
    feature: Feature
    label: Target
    weight: float = 1.0


@dataclass(frozen=True)
class Examples:
    """One split: `read` yields its `count` examples in the order to write them."""

    count: int
    read: Callable[[], Iterator[Example]]


@dataclass(frozen=True)
class Source:
    """A dataset that can be read; `kind` is `image`, `text` or `array`.

    `targets` says what an example's label is, one of tpu_training.models.spec.TARGETS. Where texts
    are token ids already, `vocabulary` is their number, and `tokens` are their names if they have
    any. `form` has the shapes and types of arrays and of several targets. Where the source is
    `weighted`, each example has a weight.
    """

    name: str
    kind: str
    classes: int
    splits: dict[str, Examples]
    class_names: tuple[str, ...] = ()
    targets: str = specs.CLASS
    vocabulary: int = 0
    tokens: tuple[str, ...] = ()
    form: specs.DataSpec | None = None
    weighted: bool = False


@dataclass(frozen=True)
class Options:
    """The user's options for reading the source.

    Attributes:
        name: The dataset's name; None derives it from the source.
        feature: The column of the features, if the source has columns.
        label: The column of the labels, likewise.
        test_fraction: The part of the examples for testing if the source has no test split.
        validation_fraction: The part of the training examples for validation, unless 0.
        seed: The seed of these splits and of the order.
        target: The columns of the numbers to learn, instead of a label.
        labels: The columns of 0 and 1, likewise.
        length: The number of token ids of a text whose tokens the source itself names.
    """

    name: str | None = None
    feature: str | None = None
    label: str | None = None
    test_fraction: float = 0.1
    seed: int = 0
    target: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    length: int = 128
    validation_fraction: float = 0.0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of targets other than classes."""
        return self.target or self.labels


def kind_of_targets(
    number: bool, whole: bool, shape: tuple[int, ...], features: tuple[int, ...]
) -> str:
    """Return what an example's targets of `shape` are, one of specs.TARGETS; "" for none of them.

    Type and shape decide, never values: a function's examples are known one at a time.

    Args:
        number: Whether they are numbers with a point.
        whole: Whether they are whole numbers or booleans.
        shape: Their shape.
        features: The shape of the example's features.
    """
    if number and len(shape) < 2:
        return specs.NUMBERS
    if not whole:
        return ""
    if not shape:
        return specs.CLASS
    # Before labels: a mask and classes of tokens have the shape of their features.
    if len(features) == 3 and shape == features[:2]:
        return specs.MASK
    if len(shape) > 1:
        return ""
    return specs.TOKEN_CLASSES if shape == features else specs.LABELS


def refuse_outside(paths: Iterable[Path], directory: Path) -> None:
    """Raise DataError for a path that leaves the source, whose names and links others made."""
    root = directory.resolve()
    if outside := [path for path in paths if not path.resolve().is_relative_to(root)]:
        raise DataError(
            f"{outside[0]}: leads to {outside[0].resolve()}, outside of {directory}; copy it there"
        )


def pick(
    order: npt.NDArray[np.int64],
    place: Callable[[int], str],
    feature: Callable[[int], Feature],
    labels: npt.NDArray[np.generic],
) -> Examples:
    """Return the examples at the positions `order`."""

    def read() -> Iterator[Example]:
        for position in order.tolist():
            label = labels[position]
            target = label if isinstance(label, np.ndarray) else int(label)
            yield Example(place(position), feature(position), target)

    return Examples(len(order), read)


def orders(
    counts: Mapping[str, int], options: Options, place: str
) -> dict[str, tuple[str, npt.NDArray[np.int64]]]:
    """For each split, the one of `counts` that it comes from and its positions in random order.

    Sources are often sorted by class, and files are not. Without a test split, `train` is split.
    """
    if "test" in counts:
        return {split: (split, shuffled(n, options.seed)) for split, n in counts.items()}
    positions = split_at_random(counts["train"], options, place)
    return {split: ("train", order) for split, order in positions.items()}


def test_count(count: int, options: Options, place: str) -> int:
    """Return how many of `count` examples are for testing. Raises InputError for none or all."""
    return _part(count, "test", options.test_fraction, f"examples of {place}")


def _part(count: int, split: str, fraction: float, what: str) -> int:
    part = round(count * fraction)
    if not 0 < part < count:
        raise InputError(
            f"--{split}-fraction={fraction:g}: splits the {count} {what} into {count - part} for "
            f"training and {part} for {split}; both need at least one"
        )
    return part


def split_at_random(count: int, options: Options, place: str) -> dict[str, npt.NDArray[np.int64]]:
    """Choose positions for `train` and `test`, each in random order that depends on the seed."""
    test = test_count(count, options, place)
    order = shuffled(count, options.seed)
    return {"train": order[test:], "test": order[:test]}


def shuffled(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the positions in random order, the same for each pass over a source."""
    return np.random.default_rng(seed).permutation(count)


def with_validation(source: Source, options: Options) -> Source:
    """Return `source` with a part of its training examples, chosen at random, for validation.

    Raises:
        InputError: It has a split for that already, or one of both parts would be empty.
    """
    train, fraction = source.splits["train"], options.validation_fraction
    if not fraction:
        return source
    if "validation" in source.splits:
        raise InputError(
            f"--validation-fraction={fraction:g}: {source.name} already has a split validation; "
            "omit it"
        )
    count = _part(train.count, "validation", fraction, f"training examples of {source.name}")
    rest, chosen = divide(train, count, options.seed)
    splits = {**source.splits, "train": rest, "validation": chosen}
    return dataclasses.replace(source, splits=splits)


def divide(examples: Examples, count: int, seed: int) -> tuple[Examples, Examples]:
    """Choose `count` examples at random; return the others, and those, each in their old order."""
    order = shuffled(examples.count, seed)
    chosen = np.zeros(examples.count, np.bool_)
    chosen[order[:count]] = True

    def only(which: npt.NDArray[np.bool_]) -> Examples:
        def read() -> Iterator[Example]:
            # What a source reads can't be rewound, so each part reads all of it.
            return (example for number, example in enumerate(examples.read()) if which[number])

        return Examples(int(which.sum()), read)

    return only(~chosen), only(chosen)


@dataclass(frozen=True)
class Labels:
    """The labels of several splits as numbers, and the names of the classes if they have any."""

    classes: int
    splits: Mapping[str, npt.NDArray[np.generic]]
    names: tuple[str, ...] = field(default=())
    targets: str = specs.CLASS


def number_labels(splits: Mapping[str, Sequence[str]], place: Place) -> Labels:
    """Turn written labels into numbers from 0, without a class that has no training example.

    Whole numbers from 0 stay. Others, such as 1 to 5, are numbered in their order and words by the
    alphabet; their classes are called as they were written.

    Raises:
        DataError: A label is empty, negative, a fraction, or missing from the training split.
    """
    # One word among numbers makes all of them words: 7 in a column of names is a name.
    numeric = all(number_in(label) is not None for label in set().union(*splits.values()))
    for split, written in splits.items():
        for position, label in enumerate(written):
            if reason := _why_wrong(label, numeric):
                raise DataError(f"{place(split, position)}: {reason}")
    if numeric:
        splits = {split: [f"{number_in(label):.0f}" for label in v] for split, v in splits.items()}
    names = sorted(set(splits["train"]), key=int if numeric else None)
    # Classes are those of the training split: a model can't learn one that only the test has.
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
                number = number_in(text)
                wrong = number is None or not math.isfinite(number)
                if wrong or (targets == specs.LABELS and number not in (0, 1)):
                    expected = "0 or 1" if targets == specs.LABELS else "a number"
                    raise DataError(
                        f"{place(split, position)}: {names[column]} is {text!r}, expected "
                        f"{expected}"
                    )
                values[position, column] = number
        read[split] = values if targets == specs.NUMBERS else values.astype(np.int64)
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
        return "the label is empty; fill it in, or remove the row"
    number = number_in(label)
    if numeric and number is not None and (number < 0 or not number.is_integer()):
        return f"label {label}; labels must be whole numbers from 0, or words"
    return ""


def number_in(label: str) -> float | None:
    """Return the number that `label` is written as, if it is one."""
    try:
        return float(label)
    except ValueError:
        return None


def _some(names: Sequence[str]) -> str:
    more = f", … ({len(names)} in all)" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more
