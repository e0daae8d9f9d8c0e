"""Runs of neighbouring records, small enough to be put into a random order as a whole."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data.input.shards import Shards

_Numbers = npt.NDArray[np.int64]
# In each lane.
_READS_AT_ONCE = 4
# A block is read in one request, by a buffer that holds it and at least the head of a record.
_SMALLEST_BUFFER = 4096


class Blocks:
    """The records of a split in blocks of at most `size`.

    Attributes:
        counts: The number of the split's examples in each block.
    """

    def __init__(self, shards: Shards, offsets: Sequence[_Numbers], size: int) -> None:
        """Cut the files of `shards`; `offsets` are those of all records in each, and of its end."""
        self._shards = shards
        tables = [_cut(shards, number, offsets[number], size) for number in range(len(offsets))]
        *columns, self.counts = np.concatenate(tables, axis=1)
        self._columns = np.stack(columns, axis=1)

    def read(self, blocks: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.data.Dataset:
        """Return the examples of `blocks`, of each some left out and so many taken."""

        def read(columns: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.Tensor:
            shard, first, records, begin, end = tf.unstack(columns)
            buffer = tf.maximum(end - begin, _SMALLEST_BUFFER)
            run = self._shards.read_run(shard, first, records, begin, buffer)
            return run[skip : skip + take]

        columns = tf.gather(tf.constant(self._columns), blocks)
        parts = tf.data.Dataset.from_tensor_slices((columns, skip, take))
        vectors = parts.map(read, num_parallel_calls=_READS_AT_ONCE, deterministic=True)
        return vectors.unbatch()


def _cut(shards: Shards, shard: int, offsets: _Numbers, size: int) -> _Numbers:
    """Return the table of a file's blocks: file, first record, records, begin, end, examples.

    A corrupt record, which can't be read past, ends a block.
    """
    path = shards.paths[shard]
    numbers = np.arange(len(offsets) - 1)
    if path in shards.damaged:
        numbers = np.array([number for *_, number in shards.damaged[path]], np.int64)
    mine = shards.owns(path, numbers)
    index = np.arange(len(numbers))
    begins_run = np.diff(numbers, prepend=-2) > 1
    of_run = np.maximum.accumulate(np.where(begins_run, index, 0))
    begins = np.flatnonzero((index - of_run) % size == 0)
    first, last = numbers[begins], numbers[np.append(begins[1:], len(numbers)) - 1] + 1
    examples = np.add.reduceat(mine.astype(np.int64), begins) if len(begins) else first
    shard_column = np.full(len(begins), shard, np.int64)
    columns = [shard_column, first, last - first, offsets[first], offsets[last], examples]
    table: _Numbers = np.stack(columns)
    return table[:, examples > 0]
