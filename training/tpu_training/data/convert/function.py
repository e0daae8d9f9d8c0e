"""Read what a user's tf.data function yields: `def dataset(split, context)` in a Python file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tpu_training.data.convert.source import (
    IMAGE,
    TEXT,
    Example,
    Examples,
    Options,
    Source,
    divide,
    number_labels,
    test_count,
)
from tpu_training.data.function import (
    ENDLESS,
    NAME,
    SUFFIX,
    DataFunction,
    is_endless,
    load_function,
)
from tpu_training.data.manifest import MAGICS
from tpu_training.errors import DataError
from tpu_training.errors.user_lines import user_line

if TYPE_CHECKING:
    import tensorflow as tf


_SPLITS = ("train", "test", "validation")
_WANTED = (
    "pairs (features, label): an image of bytes (height, width, channels), a JPEG or PNG file's "
    "content or a text; and a whole number or a word"
)


@dataclass(frozen=True)
class _Made:
    """A split's data set, with FILE:LINE of the function that made it, and its labels."""

    rows: tf.data.Dataset
    place: str
    labels: list[str]
    is_image: bool

    def read(self, numbers: npt.NDArray[Any]) -> Iterator[Example]:
        """Yield the examples with these labels; this pass must give what the first one gave."""
        count = 0
        for count, (feature, label) in enumerate(_rows(self.rows, self.place), 1):
            if count > len(self.labels) or _written(label) != self.labels[count - 1]:
                break
            value = feature if self.is_image else feature.decode("utf-8", "replace")
            yield Example(f"{self.place}: example {count - 1}", value, int(numbers[count - 1]))
        else:
            if count == len(self.labels):
                return
        raise DataError(
            f"{self.place}: its second pass differs from the first, after {count} of "
            f"{len(self.labels)} examples; draw all that is random from context.seed, and shuffle "
            "with reshuffle_each_iteration=False"
        )


def matches(path: Path) -> bool:
    """Return whether `path` is a Python file."""
    return path.is_file() and path.suffix == SUFFIX


def load(path: Path, options: Options) -> Source:
    """Call the function for each split; it returns None for one that there is not.

    Reads everything once, for the labels, and again when the examples are written.
    """
    function = load_function(str(path), "source")
    place = function.place
    found = {split: _call(function, split, options.seed) for split in _SPLITS}
    if found["train"] is None:
        raise DataError(f"{place}: {NAME} returned None for the split train")
    made = {s: _look(rows, f"{place}: split {s}") for s, rows in found.items() if rows is not None}
    written = {split: each.labels for split, each in made.items()}
    labels = number_labels(written, lambda split, n: f"{made[split].place}: example {n}")
    splits = {split: _examples(each, labels.splits[split]) for split, each in made.items()}
    if "test" not in splits:
        count = test_count(splits["train"].count, options, place)
        splits["train"], splits["test"] = divide(splits["train"], count, options.seed)
    name = options.name or path.stem
    kind = IMAGE if made["train"].is_image else TEXT
    return Source(name, kind, labels.classes, splits, labels.names)


def _call(function: DataFunction, split: str, seed: int) -> tf.data.Dataset | None:
    rows = function(split, seed)
    if rows is not None and (problem := _problem(rows)):
        raise DataError(f"{function.place}: split {split} {problem}")
    return rows


def _problem(rows: tf.data.Dataset) -> str:
    """Say what is wrong with the examples, as far as it can be known before the first one."""
    import tensorflow as tf

    if is_endless(rows):
        return ENDLESS
    spec = rows.element_spec
    pair = isinstance(spec, tuple) and len(spec) == 2
    if not pair or not all(isinstance(part, tf.TensorSpec) for part in spec):
        return f"yields {spec}, expected {_WANTED}"
    features, label = spec
    is_image = features.dtype == tf.uint8 and features.shape.rank in (None, 2, 3)
    is_file = features.dtype == tf.string and features.shape.rank == 0
    if not (is_image or is_file):
        return f"yields features of {_described(features)}, expected {_WANTED}"
    if not (label.dtype.is_integer or label.dtype == tf.string) or label.shape.rank != 0:
        return f"yields labels of {_described(label)}, expected {_WANTED}"
    return ""


def _described(spec: tf.TensorSpec) -> str:
    return f"{spec.dtype.name} of the shape {spec.shape}"


def _look(rows: tf.data.Dataset, place: str) -> _Made:
    """Read all examples for their labels."""
    labels: list[str] = []
    is_image, shape = False, None
    for feature, label in _rows(rows, place):
        pixels = isinstance(feature, np.ndarray)
        if not labels:
            is_image, shape = (
                pixels or feature.startswith(MAGICS),
                feature.shape if pixels else None,
            )
        if pixels and feature.shape != shape:
            raise DataError(
                f"{place}: example {len(labels)} has the shape {feature.shape}, the first one "
                f"{shape}; resize them, or yield JPEG or PNG files' contents"
            )
        labels.append(_written(label))
    if not labels:
        raise DataError(f"{place}: is empty")
    return _Made(rows, place, labels, is_image)


def _rows(rows: tf.data.Dataset, place: str) -> Iterator[tuple[Any, Any]]:
    """Yield the examples; an error names the user's line."""
    import tensorflow as tf

    count = 0
    try:
        for feature, label in rows.as_numpy_iterator():
            yield feature, label
            count += 1
    except tf.errors.OpError as error:
        line = user_line(error) or place
        reason = error.message.strip().splitlines()[-1]
        raise DataError(f"{line}: after {count} examples: {reason}") from error


def _written(label: Any) -> str:
    return label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)


def _examples(made: _Made, numbers: npt.NDArray[Any]) -> Examples:
    return Examples(len(numbers), lambda: made.read(numbers))
