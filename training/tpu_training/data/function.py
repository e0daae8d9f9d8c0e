"""A user's tf.data function, `def dataset(split, context)`: found in a file, looked at, read.

A training calls it for each epoch in the graph of its input, `data convert` once in eager mode.
Both begin with the same look at its examples, which says how they would be stored in files; each
later pass is checked against that look by operations of the graph.
"""

import dataclasses
import inspect
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training.data import manifest, shards, source
from tpu_training.data.preprocessing import only_finite
from tpu_training.errors import DataError, InputError, describe, user_line
from tpu_training.models import spec as specs
from tpu_training.models.registry import load_file

NAME = "dataset"
# The form of examples that are not as the look found them, in TensorFlow's messages and in ours.
_COUNT = re.compile(r"expected to contain (\d+) elements? but contained (?:at least |only )?(\d+)")
_SHAPE = re.compile(
    r"Shape of tensor \S+ (\S+) is not compatible with expected shape (\S+?)\.?$", re.M
)
_RANGE = re.compile(
    r"a (?:class|token id) other than -?\d+ to \d+|(?:NaN or infinity|a negative number) in [\w/]+"
)
_FEATURES = (
    "a tensor of numbers, the content of a JPEG or PNG file, or a dictionary of tensors by name"
)
_TARGETS = (
    "a whole number for a class, 0 and 1 (labels,), floating-point numbers, or a class for each "
    "token or pixel"
)
NO_TARGETS = (
    "has None as targets; leave them out, or next to weights give each example the target 0.0, "
    "which a step of your own may ignore"
)
_BATCH = 1024
# Features, targets and weight.
_WEIGHTED = 3

logger = logging.getLogger(__name__)


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
        function = self.function

        @tf.function(autograph=True)  # type: ignore[untyped-decorator]
        def rows(drawn: tf.Tensor) -> tf.data.Dataset:
            return function(split, Context(drawn))

        return self._checked(lambda: rows(seed))

    def _checked(self, call: Callable[[], Any]) -> tf.data.Dataset:
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


@dataclass(frozen=True)
class LiveFunction:
    """A data function, and what a look at its examples found.

    Attributes:
        encoding: How its features would be stored in files, which is how they are read.
        spec: The examples; height and width are 0 for images' files.
        examples: Their number in each split, which every epoch must have.
        weighted: Whether examples have a weight, by which their loss is multiplied. The targets
            are a pair then, targets and weight.
    """

    function: DataFunction
    encoding: str
    spec: specs.DataSpec
    examples: Mapping[str, int]
    weighted: bool = False

    def epoch(self, split: str, seed: int, epoch: int | tf.Tensor) -> tf.data.Dataset:
        """Return features and targets of one epoch of `split`, as a dataset's files give them."""
        return self.as_announced(self.function.in_graph(split, seed_of(seed, epoch)), split)

    def as_announced(self, rows: tf.data.Dataset, split: str) -> tf.data.Dataset:
        """Return `rows`; an operation fails where they are not as the look found them."""
        # Shapes become static, which the compiled step needs, and ranges are asserted, since a
        # class out of range would be a silent NaN on an accelerator.
        checked = rows.map(self._checked)
        return checked.apply(tf.data.experimental.assert_cardinality(self.examples[split]))

    def _checked(self, *example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        features, targets = self._features(example[0]), tf.zeros((), tf.int32)
        if self.spec.targets != specs.NOTHING:
            targets = self._targets(example[1])
        if not self.weighted:
            return features, targets
        # Other splits than that to train with may have none.
        weight = example[2] if len(example) == _WEIGHTED else 1.0
        weight = _leaf(weight, tf.TensorSpec(()), "weights")
        counts = tf.debugging.Assert(weight >= 0, ["a negative number in weights"])
        with tf.control_dependencies([counts]):
            return features, (targets, tf.identity(weight))

    def _features(self, features: Any) -> Any:
        if self.encoding == manifest.ARRAY:
            return _leaves(features, self.spec)
        if self.encoding == manifest.ENCODED:
            return tf.ensure_shape(features, ())
        if self.encoding == manifest.RAW:
            with_channels = features[..., tf.newaxis] if features.shape.rank == 2 else features
            return tf.ensure_shape(with_channels, self.spec.shape)
        ids = tf.ensure_shape(tf.cast(features, tf.int32), self.spec.shape)
        return _within(ids, 0, self.spec.vocabulary - 1, "token id")

    def _targets(self, values: Any) -> Any:
        spec = self.spec
        if spec.several:
            forms = spec.target(tf.TensorSpec)
            return {name: _leaf(values[name], forms[name], f"targets/{name}") for name in forms}
        targets = tf.cast(values, spec.target_dtype)
        if spec.targets == specs.NUMBERS:
            expected = tf.TensorSpec(spec.target_shape, spec.target_dtype)
            return _leaf(tf.reshape(targets, (-1,)), expected, "targets")
        targets = tf.ensure_shape(targets, spec.target_shape)
        if spec.targets == specs.MASK:
            targets = tf.where(targets == manifest.NO_CLASS, specs.IGNORED, targets)
        least = specs.IGNORED if spec.targets in (specs.TOKEN_CLASSES, specs.MASK) else 0
        most = 1 if spec.targets == specs.LABELS else spec.classes - 1
        return _within(targets, least, most, "class")


@dataclass(frozen=True)
class Part:
    """The examples of one split of a function, for an evaluation; as shards.Shards reads files."""

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


def load_function(path: str, flag: str) -> DataFunction:
    """Return the function in the file that `--flag` names. Raises InputError if it has none."""
    file = load_file(path, flag)
    function = getattr(file, NAME, None)
    if not callable(function):
        raise InputError(f"--{flag}={path}: lacks a function `{NAME}(split, context)`")
    place = f"{path}:{inspect.unwrap(function).__code__.co_firstlineno}"
    return DataFunction(function, place, tuple(map(str, getattr(file, "class_names", ()))))


def explain(error: tf.errors.OpError, place: str) -> DataError | None:
    """Return what to tell of examples that are not as the look found them; else None."""
    text = str(error.message)
    if count := _COUNT.search(text):
        problem = f"returned {count[2]} examples in an epoch, but announced {count[1]}"
    elif shape := _SHAPE.search(text):
        problem = f"returned an example of the shape {shape[1]}, but the first one has {shape[2]}"
    elif outside := _RANGE.search(text):
        problem = f"gave {outside[0]}"
    else:
        return None
    return DataError(
        f"{place}: {problem}; every epoch must have the same number of examples in the same form"
    )


def _within(values: tf.Tensor, least: int, most: int, what: str) -> tf.Tensor:
    """Return `values`; fail at run time if one is not from `least` to `most`."""
    inside = tf.reduce_all(tf.logical_and(values >= least, values <= most))
    message = f"a {what} other than {least} to {most}"
    with tf.control_dependencies([tf.debugging.Assert(inside, [message])]):
        return tf.identity(values)


def _leaves(features: Any, spec: specs.DataSpec) -> Any:
    """Return features in the form of `spec`; fail at run time where they can't be."""
    forms = spec.features(tf.TensorSpec)
    paths = {name: f"features/{name}" for name in forms} if spec.inputs else "features"
    return tf.nest.map_structure(_leaf, features, forms, paths)


def _leaf(value: tf.Tensor, spec: tf.TensorSpec, path: str) -> tf.Tensor:
    """Return one of the features in its form; its `path` is for messages."""
    return only_finite(tf.ensure_shape(tf.cast(value, spec.dtype), spec.shape), path)


# The look: one pass over the first epoch, or only over its first example where the function says
# how many there are and how many classes.


def look(
    function: DataFunction, seed: int | tf.Tensor, alive: Callable[[], None] = lambda: None
) -> LiveFunction:
    """Call `function` for all splits and look at their examples; call `alive` now and then.

    Raises:
        InputError: The function fails; or, a DataError, its examples can't be trained on. The
            message begins with FILE:LINE.
    """
    found = {split: function(split, seed) for split in manifest.SPLITS}
    rows = {split: part for split, part in found.items() if part is not None}
    if manifest.TRAIN not in rows:
        raise DataError(f"{function.place}: returned None for the split {manifest.TRAIN}")
    # One example of each split tells the form; that the others have it is checked as they are read.
    forms = {split: _form(part, f"{function.place}: split {split}") for split, part in rows.items()}
    encoding, spec, weighted = forms[manifest.TRAIN]
    for split, other in forms.items():
        if other[:2] != (encoding, spec):
            raise DataError(
                f"{function.place}: split {split} yields {in_words(other[1])}, split "
                f"{manifest.TRAIN} {in_words(spec)}"
            )
        if other[2] and not weighted:
            raise DataError(
                f"{function.place}: split {split} has weights, split {manifest.TRAIN} none; give "
                "both some, such as 1.0"
            )
    counts: dict[str, int] = {}
    highest = -1, -1
    for split, part in rows.items():
        place = f"{function.place}: split {split}"
        counts[split], *tops = _tops(part, encoding, spec, function, place, alive)
        highest = max(highest[0], tops[0]), max(highest[1], tops[1])
    names = function.class_names
    classes = spec.classes or len(names) or 1 + highest[0]
    if names and len(names) != classes:
        raise DataError(
            f"{function.place}: class_names has {len(names)} names for {classes} {spec.targets}"
        )
    vocabulary = 1 + highest[1] if encoding == manifest.TOKENS else 0
    spec = dataclasses.replace(spec, classes=classes, vocabulary=vocabulary)
    return LiveFunction(function, encoding, spec, counts, weighted)


def _form(rows: tf.data.Dataset, place: str) -> tuple[str, specs.DataSpec, bool]:
    """Return how features are stored, the spec, and whether examples have a weight.

    One example tells all of the spec but ranges.

    `classes` is the number of labels or numbers, 0 where a class is learned.

    Raises:
        DataError: There is no example, or it has no form that a training takes.
    """
    if rows.cardinality() == tf.data.INFINITE_CARDINALITY:
        raise DataError(
            f"{place} never ends; remove repeat(), because the training reads it again in each "
            "epoch"
        )
    with _named(place):
        first = next(iter(rows), None)
    if first is None:
        raise DataError(f"{place} is empty")
    parts = first if isinstance(first, tuple) else (first,)
    if len(parts) > 1 and parts[1] is None:
        raise DataError(f"{place} {NO_TARGETS}")
    if len(parts) > _WEIGHTED or not all(
        isinstance(part, tf.Tensor | Mapping) for part in parts[1:]
    ):
        raise DataError(
            f"{place} yields {type(first).__name__} of {len(parts)}, expected a pair, features and "
            "targets, or with a weight three; features and targets may be dictionaries"
        )
    weighted = len(parts) == _WEIGHTED
    if weighted and (isinstance(parts[2], Mapping) or parts[2].shape.rank):
        form = "keys" if isinstance(parts[2], Mapping) else f"the shape {parts[2].shape}"
        raise DataError(f"{place}: weights has {form} in an example; expected one number")
    encoding, dtype = manifest.ARRAY, ""
    shape: tuple[int, ...] = ()
    inputs: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    if isinstance(parts[0], Mapping):
        leaves = sorted(parts[0].items())
        inputs = tuple((name, *_array(x, f"features/{name}", place)) for name, x in leaves)
    elif not isinstance(parts[0], tf.Tensor):
        raise DataError(f"{place} yields features that are {_kind(parts[0])}, expected {_FEATURES}")
    else:
        encoding, shape = _encoding(parts[0], place)
        if encoding == manifest.ARRAY:
            shape, dtype = _array(parts[0], "features", place)
    targets = specs.NOTHING
    several: tuple[tuple[str, tuple[int, ...], str], ...] = ()
    if len(parts) > 1 and isinstance(parts[1], Mapping):
        leaves = sorted(parts[1].items())
        targets = specs.SEVERAL
        several = tuple((name, *_array(x, f"targets/{name}", place)) for name, x in leaves)
    elif len(parts) > 1:
        targets = _target_kind(parts[1], encoding, shape, place)
    width = int(tf.size(parts[1])) if targets in (specs.LABELS, specs.NUMBERS) else 0
    if encoding != manifest.ARRAY:
        spec = manifest.stored_spec(encoding, shape, width, targets=targets)
    else:
        spec = specs.DataSpec("array", shape, dtype, width, targets=targets, inputs=inputs)
    return encoding, dataclasses.replace(spec, several=several), weighted


def _kind(value: object) -> str:
    if isinstance(value, tf.RaggedTensor | tf.SparseTensor):
        return f"a {type(value).__name__}; pad it with to_tensor() or padded_batch()"
    return f"a {type(value).__name__}"


def _array(value: Any, path: str, place: str) -> tuple[tuple[int, ...], str]:
    """Return shape and type of one of the features as a step takes it."""
    if not isinstance(value, tf.Tensor):
        raise DataError(f"{place}: {path} is {_kind(value)}; expected a tensor of numbers")
    if value.dtype.name not in specs.DTYPES:
        raise DataError(
            f"{place}: {path} is {value.dtype.name}, which TPUs do not compute with; expected one "
            f"of {', '.join(specs.DTYPES)}"
        )
    if 0 in value.shape:
        raise DataError(
            f"{place}: {path} has the shape {tuple(value.shape)}, and no value; omit it"
        )
    return tuple(value.shape), "float32" if value.dtype == tf.float64 else value.dtype.name


def _encoding(features: tf.Tensor, place: str) -> tuple[str, tuple[int, ...]]:
    shape = tuple(features.shape)
    if features.dtype == tf.uint8 and len(shape) in (2, 3):
        return manifest.RAW, (*shape, 1)[:3]
    if features.dtype in (tf.int32, tf.int64) and len(shape) == 1:
        return manifest.TOKENS, shape
    if features.dtype == tf.string and not shape:
        if features.numpy().startswith(manifest.MAGICS):
            grey = tf.io.decode_image(features).shape[-1] == 1
            return manifest.ENCODED, (0, 0, 1 if grey else 3)
        raise DataError(
            f"{place} yields texts, which must become token ids first; write them as CSV or "
            "Parquet for `tpu-training data convert`, or give them to fit() with a test split"
        )
    return manifest.ARRAY, shape


def _target_kind(targets: tf.Tensor, encoding: str, shape: tuple[int, ...], place: str) -> str:
    whole = targets.dtype.is_integer or targets.dtype == tf.bool
    # An image in a file has no known size, so its targets are never a mask; an array has no places.
    features = () if encoding in (manifest.ENCODED, manifest.ARRAY) else shape
    found = tuple(targets.shape)
    if kind := source.kind_of_targets(targets.dtype.is_floating, whole, found, features):
        return kind
    if targets.dtype == tf.string:
        raise DataError(
            f"{place} yields words as labels, which must be numbers from 0; number them, for "
            "example with numpy.unique(words, return_inverse=True)"
        )
    given = f"{targets.dtype.name} of the shape {found}"
    raise DataError(f"{place} yields targets of {given}, expected {_TARGETS}")


def in_words(spec: specs.DataSpec) -> str:
    """Return what an example of `spec` has, for messages."""
    features = spec.features(lambda shape, dtype: f"{dtype} of the shape {shape}")
    width = f"{spec.classes} " if spec.targets in (specs.LABELS, specs.NUMBERS) else ""
    targets = spec.target(lambda *form: form) if spec.several else spec.targets
    packed = f", several texts that begin with the token {spec.start}" if spec.start >= 0 else ""
    return f"features {features} with {width}{targets}{packed}"


def _tops(
    rows: tf.data.Dataset,
    encoding: str,
    spec: specs.DataSpec,
    function: DataFunction,
    place: str,
    alive: Callable[[], None],
) -> tuple[int, int, int]:
    """Count the examples, and find the highest class and token where nothing else says them."""
    counted = (specs.LABELS, specs.NUMBERS, specs.NOTHING, specs.SEVERAL)
    count = int(rows.cardinality())
    known = spec.targets in counted or function.class_names
    if count >= 0 and known and encoding != manifest.TOKENS:
        return count, 0, 0
    logger.info("data: reading the examples of %s once to count them", place)

    def highest(*example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        token = tf.reduce_max(example[0]) if encoding == manifest.TOKENS else 0
        if encoding == manifest.ARRAY:
            _leaves(example[0], spec)  # It asserts that there is no NaN.
        classes = tf.cast(0 if spec.targets in counted else example[1], tf.int64)
        if spec.targets == specs.MASK:
            classes = tf.where(classes == manifest.NO_CLASS, tf.zeros((), tf.int64), classes)
        return tf.reduce_max(classes), tf.cast(token, tf.int64)

    tops, examples = [(-1, -1)], 0
    with _named(place):
        for classes, tokens in rows.map(highest).batch(_BATCH).as_numpy_iterator():
            alive()
            examples += len(classes)
            tops.append((int(classes.max()), int(tokens.max())))
    return (examples, *np.max(tops, axis=0).tolist())


@contextmanager
def _named(place: str) -> Iterator[None]:
    """Turn TensorFlow's errors into ones that begin with the user's line, or else with `place`."""
    try:
        yield
    except tf.errors.OpError as error:
        line = user_line(error) or place
        raise explain(error, line) or DataError(f"{line}: {describe(error)}") from error


def load_examples(path: Path, options: source.Options) -> source.Source:
    """Return what the function in the file `path` yields, for `data convert`."""
    return source_of(load_function(str(path), "source"), options.name or path.stem, options)


def source_of(
    function: DataFunction,
    name: str,
    options: source.Options,
    texts: Mapping[str, Any] | None = None,
) -> source.Source:
    """Return what `function` yields as a source called `name`.

    The look reads everything once, the writing at least once more: two passes where a part of
    `train` is for testing. An example of another pass could be in both parts, so each pass is
    compared with the first, by checksums. With `texts` a feature is the number of one of a split.
    """
    live = look(function, options.seed)

    def examples(split: str) -> source.Examples:
        seen: list[int] = []

        def read() -> Iterator[source.Example]:
            rows, place = function(split, options.seed), f"{function.place}: split {split}"
            with _named(place):
                checked = live.as_announced(rows, split).as_numpy_iterator()
                for number, (feature, given) in enumerate(checked):
                    checksum = _checksum((feature, given))
                    if number == len(seen):
                        seen.append(checksum)
                    if checksum != seen[number]:
                        raise DataError(
                            f"{place}: another pass returned another example {number}; derive all "
                            "randomness from context.seed, and shuffle with a seed"
                        )
                    label, weight = given if live.weighted else (given, 1.0)
                    label = int(label) if live.spec.targets == specs.CLASS else label
                    feature = texts[split][int(feature)] if texts else feature
                    name = f"{place}: example {number}"
                    yield source.Example(name, feature, label, float(weight))

        return source.Examples(live.examples[split], read)

    splits = {split: examples(split) for split in live.examples}
    if manifest.TEST not in splits:
        train = splits[manifest.TRAIN]
        count = source.test_count(train.count, options, function.place)
        splits[manifest.TRAIN], splits[manifest.TEST] = source.divide(train, count, options.seed)
    spec = live.spec
    return source.Source(
        *(name, source.TEXT if texts else spec.kind, spec.classes, splits, function.class_names),
        *(spec.targets, spec.vocabulary, ()),
        form=spec,
        weighted=live.weighted,
    )


def _checksum(example: Any) -> int:
    """Return one of an example's arrays."""
    checksum = 0
    for value in tf.nest.flatten(example):
        checksum = zlib.crc32(value if isinstance(value, bytes) else value.tobytes(), checksum)
    return checksum
