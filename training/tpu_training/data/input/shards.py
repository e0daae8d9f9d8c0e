"""Read the TFRecord files of a split as serialised examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import tensorflow as tf

_READ_BUFFER_BYTES = 8 << 20
_PARALLEL_READS = 4
# Examples taken from a file in turn; for small ones twice as fast as one by one.
_BLOCK = 16

# Offset and length of each readable record in a damaged file, and its number among all.
Readable = tuple[tuple[int, int, int], ...]
# Makes one number of a file's and a record's.
_RECORDS_PER_FILE = 1 << 40
_SELECTED_AT_ONCE = 256


@dataclass(frozen=True)
class Shards:
    """The files of one split: their paths, the examples in each, and the total bytes.

    `damaged` lists the readable records of each file that has corrupt ones. Where a split is a part
    of its files' records, `held` has the numbers of some in each whole file: those alone belong to
    it, or all but those if `without_held`.
    """

    paths: tuple[str, ...]
    counts: tuple[int, ...]
    bytes: int
    damaged: Mapping[str, Readable] = field(default_factory=dict)
    held: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    without_held: bool = False

    @property
    def examples(self) -> int:
        """The number of examples in all files."""
        return sum(self.counts)

    @property
    def bytes_per_example(self) -> int:
        """The mean size of an example, at least 1."""
        return max(1, self.bytes // self.examples)

    def read_all(self) -> tf.data.Dataset:
        """Return every example, always in the same order."""
        return self.read_part(0, self.examples)

    def read_part(self, begin: int, end: int) -> tf.data.Dataset:
        """Return the examples from number `begin` up to `end`, from no other files than theirs."""
        counts = np.array(self.counts, np.int64)
        starts = np.cumsum(counts) - counts
        skip = np.clip(begin - starts, 0, counts)
        take = np.clip(end - starts, 0, counts) - skip
        # The last part of a file has no end, so that records beyond the announced ones are noticed.
        parts = np.stack([np.arange(len(counts)), skip, np.where(skip + take < counts, take, -1)])
        return tf.data.Dataset.from_tensor_slices(parts.T[take > 0]).interleave(
            lambda part: self.read(part[0]).skip(part[1]).take(part[2]),
            cycle_length=_PARALLEL_READS,
            block_length=_BLOCK,
            num_parallel_calls=_PARALLEL_READS,
        )

    def read(self, shard: tf.Tensor) -> tf.data.Dataset:
        """Return the split's examples in the file number `shard` in order."""
        records = self._read_file(shard)
        return self._select(records, shard) if self.held else records

    def read_slice(self, shard: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.Tensor:
        """Return `take` of a file's examples that follow the first `skip`, which are read, too."""
        return self.read(shard).skip(skip).take(take).batch(take).get_single_element()

    def _own(self, shard: tf.Tensor, first: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
        """Return which records of a file, from number `first` on, belong to the split."""
        keys = [
            number * _RECORDS_PER_FILE + self.held.get(path, np.zeros(0, np.int64))
            for number, path in enumerate(self.paths)
        ]
        held = tf.constant(np.concatenate(keys), tf.int64)
        numbers = first + tf.range(tf.size(content, tf.int64))
        numbers += tf.cast(shard, tf.int64) * _RECORDS_PER_FILE
        places = tf.minimum(tf.searchsorted(held, numbers), tf.size(held) - 1)
        is_held = tf.equal(tf.gather(held, places), numbers)
        # The readable records of a damaged file are those of this split already.
        damaged = tf.gather(tf.constant([path in self.damaged for path in self.paths]), shard)
        return (is_held ^ self.without_held) | damaged

    def _select(self, records: tf.data.Dataset, shard: tf.Tensor) -> tf.data.Dataset:
        """Leave out those of a file's `records` that are not of this split."""

        def select(batch: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
            return tf.boolean_mask(content, self._own(shard, batch * _SELECTED_AT_ONCE, content))

        return records.batch(_SELECTED_AT_ONCE).enumerate().map(select).unbatch()

    def _read_file(self, shard: tf.Tensor) -> tf.data.Dataset:
        path = tf.gather(tf.constant(self.paths), shard)
        if not self.damaged:
            return tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER_BYTES)
        # TensorFlow's reader stops at a corrupt record, so the readable records of a damaged file
        # are cut out by offset. One of the two data sets is empty.
        damaged = tf.gather(tf.constant([path in self.damaged for path in self.paths]), shard)
        whole = tf.data.TFRecordDataset(tf.boolean_mask([path], [tf.logical_not(damaged)]))
        places = tf.ragged.constant(
            [[list(place[:2]) for place in self.damaged.get(path, ())] for path in self.paths],
            ragged_rank=1,
            inner_shape=(2,),
            dtype=tf.int32,
        )[shard]
        rest = tf.cond(
            damaged,
            lambda: tf.strings.substr(tf.io.read_file(path), places[:, 0], places[:, 1]),
            lambda: tf.zeros((0,), tf.string),
        )
        return whole.concatenate(tf.data.Dataset.from_tensor_slices(rest))
