"""Write sharded TFRecord files and their checksums."""

import math
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path

import numpy as np
import tensorflow as tf

from tpu_training.data import files
from tpu_training.data.convert.encode import Encoder
from tpu_training.data.convert.source import Example, Examples, Target
from tpu_training.data.manifest import LABEL, TARGETS_FIELD, DataFile, Split
from tpu_training.errors import DataError
from tpu_training.models.spec import CLASS, MASK, NOTHING, NUMBERS

# Files are read whole (data/input/stream.py), so small ones mix better, and many serve many hosts:
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
