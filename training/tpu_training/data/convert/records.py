"""Sharded TFRecord files: how a source's features are encoded, dealt to files and checksummed."""

from __future__ import annotations

import logging
import math
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from tpu_training.data import files
from tpu_training.data.convert.source import Example, Examples, Target
from tpu_training.data.convert.text import Tokenizer
from tpu_training.data.manifest import ENCODED, LABEL, RAW, TARGETS_FIELD, TOKENS, DataFile, Split
from tpu_training.errors import DataError
from tpu_training.models.params import LARGEST_IMAGE
from tpu_training.models.spec import CLASS, MASK, NOTHING, NUMBERS

# Files are read whole (data/shards.py), so small ones mix better, and many serve many hosts:
# up to 512 of them, of 2 to 16 MiB. The largest data sets have larger ones.
_SMALLEST, _LARGEST, _SHARDS = 2 << 20, 16 << 20, 512
# All are open at once, with some others. macOS allows a process 10,240.
_MOST_OPEN, _OTHER_FILES = 8192, 256
_UNFINISHED = ".unfinished"
_CHUNK = 256


def write_split(
    directory: Path, prefix: str, examples: Examples, encoder: Encoder, targets: str = CLASS
) -> Split:
    """Write `examples` to files PREFIX-00000-of-0000N.tfrecord in turn.

    The files get their names once complete.
    """
    with ThreadPoolExecutor() as pool:
        records = _records(pool, examples, encoder, targets)
        first = list(islice(records, _CHUNK))
        shards = _count_shards(first, examples.count)
        paths = [directory / f"{prefix}-{n:05d}-of-{shards:05d}.tfrecord" for n in range(shards)]
        unfinished = [path.with_suffix(_UNFINISHED) for path in paths]
        counts = _deal(chain(first, records), unfinished)
    if sum(counts) != examples.count:
        raise DataError(
            f"{directory / prefix}: the source gave {sum(counts)} examples instead of the "
            f"announced {examples.count}"
        )
    written = []
    for path, count in zip(unfinished, counts, strict=True):
        final = path.replace(path.with_suffix(".tfrecord"))
        written.append(DataFile(final.name, count, final.stat().st_size, files.sha256(str(final))))
    return Split(examples.count, tuple(written))


def _count_shards(first: list[bytes], count: int) -> int:
    """Return the number of files for `count` records, of which these are the first."""
    size = sum(map(len, first)) * count // max(1, len(first))
    wanted = math.ceil(size / min(max(size // _SHARDS, _SMALLEST), _LARGEST))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MOST_OPEN if hard == resource.RLIM_INFINITY else min(_MOST_OPEN, hard)
    if soft != resource.RLIM_INFINITY:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, allowed), hard))
    return max(1, min(wanted, allowed - _OTHER_FILES, count))


def _deal(records: Iterator[bytes], paths: list[Path]) -> list[int]:
    """Write the records to `paths` in turn; return how many each has.

    Each turn begins one file later, or a source with ten classes in turn would give each of ten
    files a class of its own, and validation, which takes whole files, no others.
    """
    counts = [0] * len(paths)
    with ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(str(path))) for path in paths]
        for number, record in enumerate(records):
            file = (number + number // len(paths)) % len(paths)
            writers[file].write(record)
            counts[file] += 1
    return counts


def _records(
    pool: ThreadPoolExecutor, examples: Examples, encoder: Encoder, targets: str
) -> Iterator[bytes]:
    """Yield serialised examples in order. Images are decoded in parallel to check them."""

    def record(example: Example) -> bytes:
        name, value = encoder.encode(example)
        features = tf.train.Features(feature={name: value, **_target(example.label, targets)})
        return bytes(tf.train.Example(features=features).SerializeToString())

    source = examples.read()
    while chunk := list(islice(source, _CHUNK)):
        yield from pool.map(record, chunk)


def _target(label: Target, targets: str) -> dict[str, tf.train.Feature]:
    """Return an example's targets as data/preprocessing.py reads them."""
    if targets == NOTHING:
        return {}
    if targets == CLASS:
        return {LABEL: tf.train.Feature(int64_list=tf.train.Int64List(value=[label]))}
    values = np.asarray(label)
    if targets == MASK:
        content = tf.train.BytesList(value=[values.astype(np.uint8).tobytes()])
        return {TARGETS_FIELD: tf.train.Feature(bytes_list=content)}
    flat = values.ravel().tolist()
    if targets == NUMBERS:
        return {TARGETS_FIELD: tf.train.Feature(float_list=tf.train.FloatList(value=flat))}
    return {TARGETS_FIELD: tf.train.Feature(int64_list=tf.train.Int64List(value=flat))}


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
