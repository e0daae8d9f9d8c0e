"""The part of a data set's description that a model needs."""

from dataclasses import dataclass

from tpu_training.errors import InputError


@dataclass(frozen=True)
class DataSpec:
    """The features of an example, and the number of classes.

    Attributes:
        kind: `image` or `text`.
        shape: The shape of the input pipeline's features: (height, width, channels) or (length,).
        dtype: Their type: uint8 for images, int32 for token ids, in which 0 is padding.
        classes: The number of classes; labels are 0 to `classes` - 1.
        vocabulary: The number of tokens; ids are 0 to `vocabulary` - 1.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    classes: int
    vocabulary: int = 0


def image_shape(spec: DataSpec) -> tuple[int, int, int]:
    """Return (height, width, channels). Raises InputError if the data set has no images."""
    if spec.kind != "image":
        raise InputError(
            f"--model takes images, but the data set holds {spec.kind}; choose another"
        )
    height, width, channels = spec.shape
    return height, width, channels


def text_length(spec: DataSpec) -> int:
    """Return the tokens per example. Raises InputError if the data set has no texts."""
    if spec.kind != "text":
        raise InputError(f"--model takes text, but the data set holds {spec.kind}s; choose another")
    (length,) = spec.shape
    return length
