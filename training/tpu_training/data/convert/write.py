"""Write sharded TFRecord files and their checksums."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import numpy as np
import tensorflow as tf

from tpu_training.data import files
from tpu_training.data.convert.encode import Encoder
from tpu_training.data.convert.source import Example, Examples, Target
from tpu_training.data.index import INDEX_SUFFIX, encode_lengths
from tpu_training.data.manifest import LABEL, TARGETS_FIELD, DataFile, Split
from tpu_training.errors import DataError
from tpu_training.models.spec import CLASS, MASK, NOTHING, NUMBERS

# Large enough to avoid many small requests to a bucket, small enough to read in parallel.
_SHARD_BYTES = 16 << 20
# All are open at once, and a process's open files are limited.
_MOST_SHARDS = 256
_UNFINISHED = ".unfinished"
_CHUNK = 256


def write_split(
    directory: Path, prefix: str, examples: Examples, encoder: Encoder, targets: str = CLASS
) -> Split:
    """Write `examples` to files PREFIX-00000-of-0000N.tfrecord in round-robin order.

    The files get their names once complete.
    """
    shards = max(1, min(math.ceil(examples.bytes / _SHARD_BYTES), _MOST_SHARDS, examples.count))
    paths = [directory / f"{prefix}-{n:05d}-of-{shards:05d}.tfrecord" for n in range(shards)]
    unfinished = [path.with_suffix(_UNFINISHED) for path in paths]
    lengths = _write(unfinished, examples, encoder, targets)
    counts = [len(each) for each in lengths]
    if sum(counts) != examples.count:
        raise DataError(
            f"{directory / prefix}: the source gave {sum(counts)} examples instead of the "
            f"announced {examples.count}"
        )
    written = []
    for path, count in zip(unfinished, counts, strict=True):
        final = path.replace(path.with_suffix(".tfrecord"))
        written.append(DataFile(final.name, count, final.stat().st_size, files.sha256(str(final))))
    index = directory / f"{prefix}{INDEX_SUFFIX}"
    index.write_bytes(b"".join(encode_lengths(each) for each in lengths))
    described = DataFile(index.name, examples.count, index.stat().st_size, files.sha256(str(index)))
    return Split(examples.count, tuple(written), described)


def _write(
    paths: list[Path], examples: Examples, encoder: Encoder, targets: str
) -> list[list[int]]:
    """Distribute the examples over `paths` in turn; return the length of each, by path."""
    lengths: list[list[int]] = [[] for _ in paths]
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        writers = [stack.enter_context(tf.io.TFRecordWriter(str(path))) for path in paths]
        for number, record in enumerate(_records(pool, examples, encoder, targets)):
            shard = number % len(paths)
            writers[shard].write(record)
            lengths[shard].append(len(record))
    return lengths


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
    """Return an example's targets as data/preprocessing/parse.py reads them."""
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
