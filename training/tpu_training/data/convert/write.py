"""Write sharded TFRecord files and their checksums."""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import islice
from pathlib import Path

import tensorflow as tf

from tpu_training.data import files
from tpu_training.data.convert.encode import Encoder
from tpu_training.data.convert.source import Example, Examples
from tpu_training.data.manifest import DataFile, Split
from tpu_training.errors import DataError

# Large enough to avoid many small requests to a bucket, small enough to read in parallel.
_SHARD_BYTES = 16 << 20
# All are open at once, and a process's open files are limited.
_MOST_SHARDS = 256
_UNFINISHED = ".unfinished"
_CHUNK = 256


def write_split(directory: Path, prefix: str, examples: Examples, encoder: Encoder) -> Split:
    """Write `examples` to files PREFIX-00000-of-0000N.tfrecord in round-robin order.

    The files get their names once complete. After an error the unfinished ones are removed.
    """
    shards = max(1, min(math.ceil(examples.bytes / _SHARD_BYTES), _MOST_SHARDS, examples.count))
    paths = [directory / f"{prefix}-{n:05d}-of-{shards:05d}.tfrecord" for n in range(shards)]
    unfinished = [path.with_suffix(_UNFINISHED) for path in paths]
    try:
        counts = _write(unfinished, examples, encoder)
        if sum(counts) != examples.count:
            raise DataError(
                f"{directory / prefix}: the source gave {sum(counts)} examples instead of the "
                f"announced {examples.count}"
            )
        written = []
        for path, count in zip(unfinished, counts, strict=True):
            final = path.replace(path.with_suffix(".tfrecord"))
            written.append(
                DataFile(final.name, count, final.stat().st_size, files.sha256(str(final)))
            )
    except BaseException:
        for path in unfinished:
            path.unlink(missing_ok=True)
        raise
    return Split(examples.count, tuple(written))


def _write(paths: list[Path], examples: Examples, encoder: Encoder) -> list[int]:
    """Distribute the examples over `paths` in turn; return the count of each."""
    counts = [0] * len(paths)
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        writers = [stack.enter_context(tf.io.TFRecordWriter(str(path))) for path in paths]
        for number, record in enumerate(_records(pool, examples, encoder)):
            shard = number % len(paths)
            writers[shard].write(record)
            counts[shard] += 1
    return counts


def _records(pool: ThreadPoolExecutor, examples: Examples, encoder: Encoder) -> Iterator[bytes]:
    """Yield serialised examples in order. Images are decoded in parallel to check them."""

    def record(example: Example) -> bytes:
        name, value = encoder.encode(example)
        label = tf.train.Feature(int64_list=tf.train.Int64List(value=[example.label]))
        features = tf.train.Features(feature={name: value, "label": label})
        return bytes(tf.train.Example(features=features).SerializeToString())

    source = examples.read()
    while chunk := list(islice(source, _CHUNK)):
        yield from pool.map(record, chunk)
