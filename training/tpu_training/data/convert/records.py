"""Sharded TFRecord files: how a source's features are encoded, dealt to files and checksummed."""

from __future__ import annotations

import logging
import math
import resource
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf

from tpu_training.data import files
from tpu_training.data.convert.source import Example, Examples, Feature, Target
from tpu_training.data.manifest import ENCODED, LABEL, TARGETS_FIELD, TOKENS, DataFile, Split
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
    """A way to store features; `shape`, 0 for sizes that differ, is valid once all are encoded."""

    encoding: str
    vocabulary: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the features."""

    def encode(self, example: Example) -> tuple[str, tf.train.Feature]:
        """Return the feature's name and value. Raises DataError that names the example's place."""

    def warn(self) -> None:
        """Log what is unusual about the features, once all are encoded."""


class Images:
    """Images as unsigned bytes of one shape (`raw`), or as JPEG and PNG files (`encoded`).

    Each file is decoded once to check it.
    """

    vocabulary = 0

    def __init__(self, encoding: str) -> None:
        """Store images in `encoding`."""
        self.encoding = encoding
        self._shapes: set[tuple[int, ...]] = set()
        self._large: dict[str, tuple[int, ...]] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """Height, width and channels, colour if any image is; 0 for sizes that differ."""
        heights, widths, channels = (set(sizes) for sizes in zip(*self._shapes, strict=True))
        same = len(heights) == len(widths) == 1
        return (*((*heights, *widths) if same else (0, 0)), max(channels))

    def encode(self, example: Example) -> tuple[str, tf.train.Feature]:
        """Return the image's bytes, row by row, or its file's content."""
        place, feature = example.place, example.feature
        if self.encoding == ENCODED and not isinstance(feature, bytes):
            feature = tf.io.encode_png(feature).numpy()
        image = _decode(place, feature) if isinstance(feature, bytes) else np.asarray(feature)
        if max(image.shape[:2]) > LARGEST_IMAGE:
            self._large[place] = image.shape
        if self.encoding == ENCODED:
            # The transparency channel is dropped on reading.
            channels = image.shape[2] if image.shape[2] in _CHANNELS else image.shape[2] - 1
            self._shapes.add((*image.shape[:2], channels))
            assert isinstance(feature, bytes)
            return "image", _bytes(feature)
        self._shapes = self._shapes or {image.shape}
        if image.shape not in self._shapes or image.ndim != 3:
            raise DataError(
                f"{place}: has the shape {image.shape}, the first image "
                f"{next(iter(self._shapes))}; store images of different sizes with "
                "--encoding=encoded"
            )
        return "image", _bytes(image.tobytes())

    def warn(self) -> None:
        """Log how many images are larger than a model can take."""
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


@dataclass
class Tokens:
    """Texts as token ids of one length; `ids` gives those of a feature."""

    ids: Callable[[Feature], Sequence[int]]
    length: int
    vocabulary: int
    encoding = TOKENS

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of ids."""
        return (self.length,)

    def encode(self, example: Example) -> tuple[str, tf.train.Feature]:
        """Return the ids, padded with 0."""
        ids = self.ids(example.feature)
        return "tokens", tf.train.Feature(int64_list=tf.train.Int64List(value=ids))

    def warn(self) -> None:
        """Say nothing: all have one length."""


def _decode(place: str, content: bytes) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """Decode the image. Raises DataError if that fails."""
    try:
        decoded = tf.io.decode_image(content, expand_animations=False).numpy()
    except tf.errors.InvalidArgumentError as error:
        reason = error.message.split("}} ", 1)[-1].partition("[Op:")[0].strip()
        raise DataError(f"{place}: can't be decoded as an image ({reason})") from error
    image: np.ndarray[tuple[int, int, int], np.dtype[np.uint8]] = decoded
    return image


def _bytes(content: bytes) -> tf.train.Feature:
    return tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
