"""A data function that a training reads itself: called for each epoch, in the input's graph."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import tensorflow as tf

from tpu_training.data import shards
from tpu_training.data.function import DataFunction
from tpu_training.data.manifest import ENCODED, MAGICS, NO_CLASS, RAW, TOKENS
from tpu_training.errors import DataError
from tpu_training.models.spec import (
    CLASS,
    IGNORED,
    LABELS,
    MASK,
    NOTHING,
    NUMBERS,
    TOKEN_CLASSES,
    DataSpec,
)

_COUNT = re.compile(r"expected to contain (\d+) elements? but contained (?:at least |only )?(\d+)")
_SHAPE = re.compile(
    r"Shape of tensor \S+ (\S+) is not compatible with expected shape (\S+?)\.?$", re.M
)
_RANGE = re.compile(r"a (?:class|token id) other than -?\d+ to \d+")


@dataclass(frozen=True)
class LiveFunction:
    """A data function, and what a look at its examples found.

    Attributes:
        encoding: How its features would be stored in files, which is how they are read.
        spec: The examples; height and width are 0 for images' files.
        examples: Their number in each split, which every epoch must have.
    """

    function: DataFunction
    encoding: str
    spec: DataSpec
    examples: Mapping[str, int]

    def read(self, split: str, seed: tf.Tensor) -> tf.data.Dataset:
        """Return features and targets of `split`, as a data set's files would give them.

        An operation fails where they are not as the look found them.
        """
        rows = self.function.in_graph(split, seed).map(self._checked)
        return rows.apply(tf.data.experimental.assert_cardinality(self.examples[split]))

    def epoch(self, split: str, seed: int, epoch: int | tf.Tensor) -> tf.data.Dataset:
        """Return the examples of one epoch."""
        return self.read(split, seed_of(seed, epoch))

    def _checked(self, *example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features = self._features(example[0])
        if self.spec.targets == NOTHING:
            return features, tf.zeros((), tf.int32)
        return features, self._targets(example[1])

    def _features(self, features: tf.Tensor) -> tf.Tensor:
        if self.encoding == ENCODED:
            return tf.ensure_shape(features, ())
        if self.encoding == RAW:
            with_channels = features[..., tf.newaxis] if features.shape.rank == 2 else features
            return tf.ensure_shape(with_channels, self.spec.shape)
        ids = tf.ensure_shape(tf.cast(features, tf.int32), self.spec.shape)
        return _within(ids, 0, self.spec.vocabulary - 1, "token id")

    def _targets(self, values: tf.Tensor) -> tf.Tensor:
        spec = self.spec
        targets = tf.cast(values, spec.target_dtype)
        if spec.targets == NUMBERS:
            return tf.ensure_shape(tf.reshape(targets, (-1,)), spec.target_shape)
        targets = tf.ensure_shape(targets, spec.target_shape)
        if spec.targets == MASK:
            targets = tf.where(targets == NO_CLASS, IGNORED, targets)
        least = IGNORED if spec.targets in (TOKEN_CLASSES, MASK) else 0
        return _within(targets, least, 1 if spec.targets == LABELS else spec.classes - 1, "class")


@dataclass(frozen=True)
class Part:
    """The examples of one split of a function, for an evaluation."""

    function: LiveFunction
    split: str
    seed: int

    @property
    def examples(self) -> int:
        """Their number."""
        return self.function.examples[self.split]

    def read_all(self) -> tf.data.Dataset:
        """Return all, always the same."""
        return self.function.epoch(self.split, self.seed, 0)

    def read_part(self, begin: int, end: int) -> tf.data.Dataset:
        """Return those from number `begin` up to `end`; what comes before is read, too."""
        return self.read_all().skip(begin).take(end - begin)


def seed_of(seed: int, epoch: int | tf.Tensor) -> tf.Tensor:
    """Return what a data function gets as `context.seed`, an int64 scalar."""
    drawn = shards.key(seed, shards.FUNCTION, epoch)
    return tf.random.stateless_uniform((), drawn, 0, tf.int64.max, tf.int64)


def explain(error: tf.errors.OpError, place: str) -> DataError | None:
    """Return what to tell of examples that are not as the look found them; else None."""
    text = str(error.message)
    if count := _COUNT.search(text):
        problem = f"gave {count[2]} examples in an epoch, of {count[1]} that were announced"
    elif shape := _SHAPE.search(text):
        problem = f"gave an example of the shape {shape[1]}, the first one has {shape[2]}"
    elif outside := _RANGE.search(text):
        problem = f"gave {outside[0]}"
    else:
        return None
    return DataError(f"{place}: {problem}; every epoch must have as many examples of the same form")


def _within(values: tf.Tensor, least: int, most: int, what: str) -> tf.Tensor:
    """Return `values`; fail at run time if one is not from `least` to `most`."""
    inside = tf.reduce_all(tf.logical_and(values >= least, values <= most))
    message = f"a {what} other than {least} to {most}"
    with tf.control_dependencies([tf.debugging.Assert(inside, [message])]):
        return tf.identity(values)


_FEATURES = (
    "bytes (height, width, channels), the content of a JPEG or PNG file, or token ids (length,)"
)
_TARGETS = (
    "a whole number for a class, 0 and 1 (labels,), numbers with a point, or a class for each "
    "token or pixel"
)
_CONVERT = "`tpu-training data convert` does that once"


@dataclass(frozen=True)
class Form:
    """How features are stored, their shape, what there is to learn, and how much of it.

    Attributes:
        width: The number of labels or numbers; 0 where a class is learned.
    """

    encoding: str
    shape: tuple[int, ...]
    targets: str
    width: int


def form_of(example: object, place: str) -> Form:
    """Return the form of `example`, a pair of tensors or features alone.

    Raises:
        DataError: It has none that a training takes.
    """
    parts = example if isinstance(example, tuple) else (example,)
    if len(parts) > 2 or not all(isinstance(part, tf.Tensor) for part in parts):
        raise DataError(
            f"{place} yields {type(example).__name__} of {len(parts)}, expected a pair of tensors, "
            "features and targets"
        )
    encoding, shape = _encoding(parts[0], place)
    targets = _targets(parts[1], encoding, shape, place) if len(parts) == 2 else NOTHING
    width = int(tf.size(parts[1])) if targets in (LABELS, NUMBERS) else 0
    return Form(encoding, shape, targets, width)


def _encoding(features: tf.Tensor, place: str) -> tuple[str, tuple[int, ...]]:
    shape = tuple(features.shape)
    if features.dtype == tf.uint8 and len(shape) in (2, 3):
        return RAW, (*shape, 1)[:3]
    if features.dtype in (tf.int32, tf.int64) and len(shape) == 1:
        return TOKENS, shape
    if features.dtype == tf.string and not shape:
        if features.numpy().startswith(MAGICS):
            return ENCODED, (0, 0, 1 if tf.io.decode_image(features).shape[-1] == 1 else 3)
        raise DataError(f"{place} yields texts, which must become token ids first; {_CONVERT}")
    raise DataError(f"{place} yields features of {described(features)}, expected {_FEATURES}")


def _targets(targets: tf.Tensor, encoding: str, shape: tuple[int, ...], place: str) -> str:
    found = tuple(targets.shape)
    if targets.dtype.is_floating and len(found) < 2:
        return NUMBERS
    if targets.dtype.is_integer or targets.dtype == tf.bool:
        if not found:
            return CLASS
        if encoding == RAW and found == shape[:2]:
            return MASK
        if len(found) == 1:
            return TOKEN_CLASSES if encoding == TOKENS and found == shape else LABELS
    if targets.dtype == tf.string:
        raise DataError(f"{place} yields words as labels, which must be numbered; {_CONVERT}")
    raise DataError(f"{place} yields targets of {described(targets)}, expected {_TARGETS}")


def described(value: tf.Tensor) -> str:
    """Return the type and shape of `value`, for messages."""
    return f"{value.dtype.name} of the shape {tuple(value.shape)}"
