"""What a data function's examples are, as the first one shows."""

from dataclasses import dataclass

import tensorflow as tf

from tpu_training.data.manifest import ENCODED, MAGICS, RAW, TOKENS
from tpu_training.errors import DataError
from tpu_training.models.spec import CLASS, LABELS, MASK, NOTHING, NUMBERS, TOKEN_CLASSES

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
