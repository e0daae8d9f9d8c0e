"""What a model has to know of the data that it is made for."""

from dataclasses import dataclass

from tpu_training.errors import InputError


@dataclass(frozen=True)
class DataSpec:
    """One example's features and the number of classes.

    `kind` is `image` or `text`. `shape` and `dtype` are those of the features as they come from the
    input pipeline: (height, width, channels) of uint8, or (length,) of int32 token ids in which 0
    is padding. Labels are 0 to `classes` - 1, token ids 0 to `vocabulary` - 1.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    classes: int
    vocabulary: int = 0


def image_shape(spec: DataSpec) -> tuple[int, int, int]:
    """(height, width, channels); InputError when the data set is none of images."""
    if spec.kind != "image":
        raise InputError(f"--model takes images, and the data set holds {spec.kind}; take another")
    height, width, channels = spec.shape
    return height, width, channels


def text_length(spec: DataSpec) -> int:
    """Tokens in an example; InputError when the data set is none of text."""
    if spec.kind != "text":
        raise InputError(f"--model takes text, and the data set holds {spec.kind}s; take another")
    (length,) = spec.shape
    return length
