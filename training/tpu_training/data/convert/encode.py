"""Encode a source's features for TFRecord files."""

import logging
import math
from typing import Protocol

import numpy as np
import tensorflow as tf

from tpu_training.data.convert.source import Example
from tpu_training.data.convert.wordpiece import Tokenizer
from tpu_training.data.manifest import ENCODED, RAW, TOKENS
from tpu_training.errors import DataError
from tpu_training.models.params import LARGEST_IMAGE

_CHANNELS = (1, 3)

logger = logging.getLogger(__name__)


class Encoder(Protocol):
    """A way to store features; `shape` is valid once all are encoded."""

    encoding: str
    vocabulary: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the features, with 0 for sizes that differ."""

    def encode(self, example: Example) -> tuple[str, tf.train.Feature]:
        """Return the feature's name and value. Raises DataError that names the example's place."""

    def warn(self) -> None:
        """Log what is unusual about the features, once all are encoded."""


class _Sizes:
    """Counts the images that are larger than a model can take."""

    def __init__(self) -> None:
        self._large: dict[str, tuple[int, ...]] = {}

    def add(self, place: str, shape: tuple[int, ...]) -> None:
        if max(shape[:2]) > LARGEST_IMAGE:
            self._large[place] = shape

    def warn(self) -> None:
        if not self._large:
            return
        place, shape = max(self._large.items(), key=lambda item: math.prod(item[1]))
        logger.warning(
            "data: images wider or higher than %d pixels: %d, the largest %s with %dx%d "
            "(%.1f MiB decoded); every epoch decodes each in full size: scale them down first",
            LARGEST_IMAGE,
            len(self._large),
            place,
            shape[1],
            shape[0],
            math.prod(shape) / 2**20,
        )


class RawImages:
    """Unsigned bytes, all of one shape; JPEG and PNG images are decoded."""

    encoding = RAW
    vocabulary = 0

    def __init__(self) -> None:
        """Take the shape from the first image."""
        self.shape: tuple[int, ...] = ()
        self._sizes = _Sizes()
        self.warn = self._sizes.warn

    def encode(self, example: Example) -> tuple[str, tf.train.Feature]:
        """Return the image's bytes, row by row."""
        feature = example.feature
        image = _decode(example) if isinstance(feature, bytes) else np.asarray(feature)
        if not self.shape:
            self.shape = image.shape
        if image.shape != self.shape or image.ndim != 3:
            raise DataError(
                f"{example.place}: has the shape {image.shape}, the first image {self.shape}; "
                "store images of different sizes with --encoding=encoded"
            )
        self._sizes.add(example.place, image.shape)
        return "image", _bytes(image.tobytes())


class EncodedImages:
    """JPEG and PNG files unchanged; each is decoded once to check it."""

    encoding = ENCODED
    vocabulary = 0

    def __init__(self) -> None:
        """Start without shapes."""
        self._shapes: set[tuple[int, ...]] = set()
        self._sizes = _Sizes()
        self.warn = self._sizes.warn

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels, colour if any image is; 0 for sizes that differ."""
        heights, widths, channels = (set(sizes) for sizes in zip(*self._shapes, strict=True))
        same = len(heights) == len(widths) == 1
        return (*((*heights, *widths) if same else (0, 0)), max(channels))

    def encode(self, example: Example) -> tuple[str, tf.train.Feature]:
        """Return the file's content."""
        feature = example.feature
        if not isinstance(feature, bytes):
            feature = tf.io.encode_png(feature).numpy()
            example = example._replace(feature=feature)
        height, width, channels = shape = _decode(example).shape
        self._sizes.add(example.place, shape)
        # The transparency channel is dropped on reading.
        self._shapes.add((height, width, channels if channels in _CHANNELS else channels - 1))
        return "image", _bytes(feature)


class Tokens:
    """Texts as token ids of one length."""

    encoding = TOKENS

    def __init__(self, tokenizer: Tokenizer, length: int) -> None:
        """Encode with `tokenizer` to `length` ids."""
        self._tokenizer = tokenizer
        self.shape: tuple[int, ...] = (length,)
        self.vocabulary = tokenizer.size

    def encode(self, example: Example) -> tuple[str, tf.train.Feature]:
        """Return the ids, padded with 0."""
        ids = self._tokenizer.encode(str(example.feature), self.shape[0])
        return "tokens", tf.train.Feature(int64_list=tf.train.Int64List(value=ids))

    def warn(self) -> None:
        """Say nothing: tokens have one length."""


class Ids:
    """Texts that are token ids of one length already."""

    encoding = TOKENS

    def __init__(self, shape: tuple[int, ...], vocabulary: int) -> None:
        """Store ids below `vocabulary`."""
        self.shape, self.vocabulary = shape, vocabulary

    def encode(self, example: Example) -> tuple[str, tf.train.Feature]:
        """Return the ids."""
        values = np.asarray(example.feature).tolist()
        return "tokens", tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    def warn(self) -> None:
        """Say nothing: all have one length."""


def _decode(example: Example) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """Decode the image. Raises DataError if that fails."""
    try:
        decoded = tf.io.decode_image(example.feature, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        reason = error.message.split("}} ", 1)[-1].partition("[Op:")[0].strip()
        raise DataError(f"{example.place}: can't be decoded as an image ({reason})") from error
    image: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]] = decoded
    return image


def _bytes(content: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
