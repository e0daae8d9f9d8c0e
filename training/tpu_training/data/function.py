"""A user's tf.data function, `def dataset(split, context)`: found in a file, called, converted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
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
from tpu_training.data.manifest import MAGICS, is_function
from tpu_training.errors import DataError, InputError
from tpu_training.errors.catalog import user_line
from tpu_training.models.registry import load_file

if TYPE_CHECKING:
    import tensorflow as tf


NAME = "dataset"


@dataclass(frozen=True)
class Context:
    """What a data function may depend on.

    Attributes:
        seed: For what the function draws at random: in `data convert` the value of --seed, in a
            training an int64 tensor, another one in each epoch.
    """

    seed: Any


@dataclass(frozen=True)
class DataFunction:
    """The function, FILE:LINE of it, and the file's `class_names`, if it has some."""

    function: Callable[[str, Context], Any]
    place: str
    class_names: tuple[str, ...] = ()

    def __call__(self, split: str, seed: int | tf.Tensor) -> tf.data.Dataset | None:
        """Return the examples of `split`, or None if there are none.

        Raises:
            InputError: The function failed; the message names its line.
            DataError: It returned something else.
        """
        return self._checked(lambda: self.function(split, Context(seed)))

    def in_graph(self, split: str, seed: tf.Tensor) -> tf.data.Dataset:
        """Return the same as a part of the graph that is being traced, compiled by AutoGraph."""
        import tensorflow as tf

        function = self.function

        @tf.function(autograph=True)  # type: ignore[untyped-decorator]
        def rows(drawn: tf.Tensor) -> tf.data.Dataset:
            return function(split, Context(drawn))

        return self._checked(lambda: rows(seed))

    def _checked(self, call: Callable[[], Any]) -> tf.data.Dataset:
        import tensorflow as tf

        try:
            rows = call()
        except Exception as error:
            line, message = user_line(error) or self.place, str(error).strip()
            # AutoGraph's message has the user's stack first.
            reason = message.splitlines()[-1].strip() if "in user code:" in message else message
            name = type(error).__name__
            prefix = "" if reason.startswith(f"{name}: ") else f"{name}: "
            raise InputError(f"{line}: {prefix}{reason}") from error
        if not (rows is None or isinstance(rows, tf.data.Dataset)):
            raise DataError(
                f"{self.place}: returned a {type(rows).__name__}, expected a tf.data.Dataset"
            )
        return rows


def load_function(path: str, flag: str) -> DataFunction:
    """Return the function in the file that `--flag` names. Raises InputError if it has none."""
    file = load_file(path, flag)
    function = getattr(file, NAME, None)
    if not callable(function):
        raise InputError(f"--{flag}={path}: lacks a function `{NAME}(split, context)`")
    place = f"{path}:{inspect.unwrap(function).__code__.co_firstlineno}"
    return DataFunction(function, place, tuple(map(str, getattr(file, "class_names", ()))))


def is_endless(rows: tf.data.Dataset) -> bool:
    """Return whether `rows` never end."""
    import tensorflow as tf

    return bool(rows.cardinality() == tf.data.INFINITE_CARDINALITY)


ENDLESS = "never ends; leave out repeat(): the training reads it again in each epoch"


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


def is_function_file(path: Path) -> bool:
    """Return whether `path` is a Python file."""
    return path.is_file() and is_function(path.name)


def load_examples(path: Path, options: Options) -> Source:
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
