"""Look at the examples of a data function, and describe them as a manifest does those of files."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.function.call import (
    ENDLESS,
    SUFFIX,
    DataFunction,
    is_endless,
    is_function,
    load_function,
)
from tpu_training.data.function.form import Form, form_of
from tpu_training.data.function.live import LiveFunction, seed_of
from tpu_training.data.manifest import (
    NO_CLASS,
    TEST,
    TOKENS,
    TRAIN,
    VALIDATION,
    DataFile,
    Manifest,
    Split,
    stored_spec,
)
from tpu_training.errors import DataError
from tpu_training.errors.catalog import user_line
from tpu_training.models.spec import LABELS, MASK, NOTHING, NUMBERS

_SPLITS = (TRAIN, TEST, VALIDATION)
_BATCH = 1024

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Looked:
    """How many examples a split has, its highest class and its highest token id."""

    examples: int
    target: int = 0
    token: int = 0


def open_given(data: str, seed: int) -> DataSet:
    """Return the data set that --data names: of a function in a file, or in a directory."""
    return open_function(data, seed) if is_function(data) else open_data(data)


def open_function(path: str, seed: int) -> DataSet:
    """Return the data set of the function in the file `path`.

    Reads all examples once, unless the function says their number and the file `class_names`.

    Raises:
        InputError: The function fails; or, a DataError, its examples are no good. With FILE:LINE.
    """
    function = load_function(path, "data")
    found = {split: function(split, seed_of(seed, 0)) for split in _SPLITS}
    if found[TRAIN] is None:
        raise DataError(f"{function.place}: returned None for the split {TRAIN}")
    given = {split: rows for split, rows in found.items() if rows is not None}
    forms = {
        split: _form(rows, f"{function.place}: split {split}") for split, rows in given.items()
    }
    form = forms[TRAIN]
    for split, other in forms.items():
        if other != form:
            raise DataError(f"{function.place}: split {split} yields {other}, split {TRAIN} {form}")
    looked = {
        split: _look(rows, form, function, f"{function.place}: split {split}")
        for split, rows in given.items()
    }
    spec = stored_spec(
        form.encoding,
        form.shape,
        _classes(form, looked, function),
        1 + max(each.token for each in looked.values()) if form.encoding == TOKENS else 0,
        form.targets,
    )
    name = path.rpartition("/")[2].removesuffix(SUFFIX)
    splits = {split: _split(split, each.examples) for split, each in looked.items()}
    counts = {split: each.examples for split, each in looked.items()}
    live = LiveFunction(function, form.encoding, spec, counts)
    return DataSet(
        path, Manifest(name, spec, form.encoding, splits, function.class_names), function=live
    )


def _form(rows: tf.data.Dataset, place: str) -> Form:
    if is_endless(rows):
        raise DataError(f"{place} {ENDLESS}")
    try:
        first = next(iter(rows), None)
    except tf.errors.OpError as error:
        raise _failed(error, place) from error
    if first is None:
        raise DataError(f"{place} is empty")
    return form_of(first, place)


def _look(rows: tf.data.Dataset, form: Form, function: DataFunction, place: str) -> _Looked:
    """Count the examples, and find the highest class and token, where nothing else says so."""
    count = int(rows.cardinality())
    named = form.targets in (LABELS, NUMBERS, NOTHING) or function.class_names
    if count >= 0 and named and form.encoding != TOKENS:
        return _Looked(count)
    logger.info("data: looking once through the examples of %s", place)

    def highest(*example: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        token = tf.reduce_max(example[0]) if form.encoding == TOKENS else 0
        return _highest_class(example, form), tf.cast(token, tf.int64)

    tops = [(-1, -1)]
    examples = 0
    try:
        for targets, tokens in rows.map(highest).batch(_BATCH).as_numpy_iterator():
            examples += len(targets)
            tops.append((int(targets.max()), int(tokens.max())))
    except tf.errors.OpError as error:
        raise _failed(error, place) from error
    target, token = np.max(tops, axis=0).tolist()
    return _Looked(examples, target, token)


def _highest_class(example: tuple[tf.Tensor, ...], form: Form) -> tf.Tensor:
    if form.targets in (LABELS, NUMBERS, NOTHING):
        return tf.zeros((), tf.int64)
    classes = tf.cast(example[1], tf.int64)
    if form.targets == MASK:
        classes = tf.where(classes == NO_CLASS, tf.zeros((), tf.int64), classes)
    return tf.reduce_max(classes)


def _classes(form: Form, looked: Mapping[str, _Looked], function: DataFunction) -> int:
    classes = form.width or len(function.class_names) or 1 + max(e.target for e in looked.values())
    if function.class_names and len(function.class_names) != classes:
        raise DataError(
            f"{function.place}: class_names has {len(function.class_names)} names for {classes} "
            f"{form.targets}"
        )
    return classes


def _split(name: str, examples: int) -> Split:
    """Describe a split as if it were one file."""
    return Split(examples, (DataFile(name, examples, 0, ""),))


def _failed(error: tf.errors.OpError, place: str) -> DataError:
    line, reason = user_line(error) or place, error.message.strip().splitlines()[-1]
    return DataError(f"{line}: {reason}")
