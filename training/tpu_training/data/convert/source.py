"""A data set before conversion: its examples and the options for reading them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tpu_training.errors import DataError, InputError

# An image as unsigned bytes (height, width[, channels]), a JPEG or PNG file's content, or a text.
Feature = npt.NDArray[np.uint8] | bytes | str
IMAGE, TEXT = "image", "text"


class Example(NamedTuple):
    """One example; `place` locates it in error messages, such as its file's path."""

    place: str
    feature: Feature
    label: int


@dataclass(frozen=True)
class Examples:
    """One split: `read` yields its `count` examples in the order to write them.

    `bytes` is their approximate size, which determines the number of files.
    """

    count: int
    bytes: int
    read: Callable[[], Iterator[Example]]


@dataclass(frozen=True)
class Source:
    """A data set that can be read; `kind` is `image` or `text`."""

    name: str
    kind: str
    classes: int
    splits: dict[str, Examples]
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Options:
    """The user's options for reading the source.

    Attributes:
        name: The data set's name; None derives it from the source.
        feature: The column of the features, if the source has columns.
        label: The column of the labels, likewise.
        test_fraction: The part of the examples for testing if the source has no test split.
        seed: The seed of that split and of the order.
    """

    name: str | None = None
    feature: str | None = None
    label: str | None = None
    test_fraction: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Labels:
    """The labels of several splits as numbers, and the names of the classes if they have any."""

    classes: int
    splits: dict[str, npt.NDArray[np.int64]]
    names: tuple[str, ...] = field(default=())


def pick(
    order: npt.NDArray[np.int64],
    place: Callable[[int], str],
    feature: Callable[[int], Feature],
    labels: npt.NDArray[np.int64],
    size: int,
) -> Examples:
    """Return the examples at the positions `order`; `size` is in bytes."""

    def read() -> Iterator[Example]:
        for position in order.tolist():
            yield Example(place(position), feature(position), int(labels[position]))

    return Examples(len(order), size, read)


def number_labels(splits: Mapping[str, Sequence[Any]], place: str) -> Labels:
    """Turn written labels into numbers: whole numbers stay, words are numbered by the alphabet.

    Raises:
        DataError: A label is negative, or missing from the training split.
    """
    try:
        numbers = {split: np.array(list(map(int, v)), np.int64) for split, v in splits.items()}
    except ValueError:
        names = sorted(set(splits["train"]))
        index = {name: number for number, name in enumerate(names)}
        for split, written in splits.items():
            if unknown := [label for label in written if label not in index]:
                raise DataError(
                    f"{place}: label {unknown[0]!r} of the split {split} is not among the training "
                    f"split's {len(names)}: {', '.join(names[:10])}"
                ) from None
        numbers = {s: np.array([index[label] for label in v]) for s, v in splits.items()}
        return Labels(len(names), numbers, tuple(names))
    classes = int(numbers["train"].max()) + 1
    check_labels(numbers, classes, place)
    return Labels(classes, numbers)


def check_labels(splits: dict[str, npt.NDArray[np.int64]], classes: int, place: str) -> None:
    """Raise DataError that names the first label outside 0 to `classes` - 1."""
    for split, labels in splits.items():
        wrong = np.flatnonzero((labels < 0) | (labels >= classes))
        if len(wrong):
            raise DataError(
                f"{place}: label {labels[wrong[0]]} at position {wrong[0]} of the split {split}, "
                f"expected 0 to {classes - 1}"
            )


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
    """How many of `count` examples are for the test; InputError when one of both gets none."""
    test = round(count * options.test_fraction)
    if not 0 < test < count:
        raise InputError(
            f"--test-fraction={options.test_fraction:g}: splits the {count} examples of {place} "
            f"into {count - test} for training and {test} for testing; both need some"
        )
    return test


def split_at_random(count: int, options: Options, place: str) -> dict[str, npt.NDArray[np.int64]]:
    """Choose positions for `train` and `test`, each in random order that depends on the seed."""
    test = test_count(count, options, place)
    order = np.random.default_rng(options.seed).permutation(count)
    return {"train": order[test:], "test": order[:test]}


def shuffled(count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the positions in random order."""
    return np.random.default_rng(seed).permutation(count)
