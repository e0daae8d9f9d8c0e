"""Take examples from arrays in memory, such as a notebook's."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tpu_training.data.convert.source import IMAGE, TEXT, Examples, Source, pick, rows_of
from tpu_training.data.manifest import NO_CLASS
from tpu_training.errors import DataError
from tpu_training.models.spec import CLASS, LABELS, MASK, NOTHING, NUMBERS, TOKEN_CLASSES

Array = npt.NDArray[Any]
# Features and targets of a split: arrays or lists of one length; None for no targets.
Split = tuple[Any, Any]
_FEATURES = "bytes (examples, height, width[, channels]), token ids (examples, length) or texts"


def source_of_arrays(name: str, splits: Mapping[str, Split], class_names: Sequence[str]) -> Source:
    """Return the data set in `splits`, `train` and `test`; see tpu_training.write_data.

    Raises:
        DataError: Features or targets have a wrong shape or type; the message names the split.
    """
    features = {split: _features(split, values) for split, (values, _) in splits.items()}
    first = features["train"]
    kind = IMAGE if first.dtype == np.uint8 and first.ndim == 4 else TEXT
    for split, array in features.items():
        if (array.dtype.kind, array.shape[1:]) != (first.dtype.kind, first.shape[1:]):
            raise DataError(
                f"{split}: an example is {_described(array)}, in train {_described(first)}"
            )
    targets, wanted = _targets_of("train", splits["train"][1], first)
    made = {"train": wanted}
    for split, (_, values) in splits.items():
        if split != "train":
            found, made[split] = _targets_of(split, values, features[split])
            if found != targets or made[split].shape[1:] != wanted.shape[1:]:
                raise DataError(f"{split}: holds {found} to learn, train {targets}")
    classes = max(_classes(targets, array) for array in made.values())
    if class_names and len(class_names) != classes:
        raise DataError(f"{len(class_names)} names for {classes} classes")
    ids = kind == TEXT and first.dtype.kind == "i"
    return Source(
        name,
        kind,
        classes,
        {split: _examples(split, features[split], made[split]) for split in splits},
        tuple(class_names),
        targets,
        1 + max(int(array.max()) for array in features.values()) if ids else 0,
    )


def _features(split: str, values: Any) -> Array:
    array = np.asarray(values)
    if array.dtype == np.uint8 and array.ndim == 3:
        array = array[..., np.newaxis]
    image = array.dtype == np.uint8 and array.ndim == 4
    ids = array.dtype.kind in "iu" and array.dtype != np.uint8 and array.ndim == 2
    text = array.dtype.kind in "UO" and array.ndim == 1
    if not len(array) or not (image or ids or text):
        raise DataError(f"{split}: features are {_described(array)}; expected {_FEATURES}")
    if ids and array.min() < 0:
        raise DataError(f"{split}: a token id is {array.min()}; they start at 0, which is padding")
    return array.astype(np.int64) if ids else array


def _targets_of(split: str, values: Any, features: Array) -> tuple[str, Array]:
    """Say what kind of targets `values` are, and return them as an array."""
    if values is None:
        return NOTHING, np.zeros(len(features), np.int64)
    array = np.asarray(values)
    if len(array) != len(features):
        raise DataError(f"{split}: {len(features)} examples, but targets for {len(array)}")
    if array.dtype.kind == "f" and array.ndim in (1, 2):
        if not np.isfinite(array).all():
            raise DataError(f"{split}: a target is not a finite number")
        return NUMBERS, array.reshape(len(array), -1).astype(np.float32)
    whole = array.dtype.kind in "iub"
    array = array.astype(np.int64) if whole else array
    if whole and array.ndim == 1:
        return CLASS, _least(split, array, 0)
    if whole and features.ndim == 4 and array.shape == features.shape[:3]:
        return MASK, _least(split, array, 0)
    if whole and features.ndim == 2 and array.shape == features.shape:
        return TOKEN_CLASSES, _least(split, array, -1)
    if whole and array.ndim == 2 and array.max() <= 1:
        return LABELS, _least(split, array, 0)
    raise DataError(
        f"{split}: targets are {_described(array)}; expected whole numbers (examples,) for "
        "classes, 0 and 1 (examples, labels) for labels, numbers with a point for regression, or a "
        "class for each token or pixel"
    )


def _least(split: str, array: Array, least: int) -> Array:
    if array.min() < least:
        raise DataError(f"{split}: a target is {array.min()}; expected at least {least}")
    return array


def _classes(targets: str, array: Array) -> int:
    if targets in (LABELS, NUMBERS):
        return int(array.shape[1])
    counted = array[array != NO_CLASS] if targets == MASK else array
    return 1 + int(counted.max(initial=0))


def _examples(split: str, features: Array, targets: Array) -> Examples:
    order = np.arange(len(features))
    return pick(order, rows_of(split), features.__getitem__, targets)


def _described(array: Array) -> str:
    return f"{array.dtype} of the shape {array.shape}"
