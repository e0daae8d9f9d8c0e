"""Read the TFRecord files of a split as serialised examples."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import tensorflow as tf

_READ_BUFFER_BYTES = 8 << 20
_PARALLEL_READS = 4
# Examples taken from a file in turn; for small ones twice as fast as one by one.
_BLOCK = 16

# Offset and length of each readable record in a damaged file.
Readable = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Shards:
    """The files of one split: their paths, the examples in each, and the total bytes.

    `damaged` lists the readable records of each file that has corrupt ones.
    """

    paths: tuple[str, ...]
    counts: tuple[int, ...]
    bytes: int
    damaged: Mapping[str, Readable] = field(default_factory=dict)

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
        if self.damaged:
            return tf.data.Dataset.range(len(self.paths)).flat_map(self.read)
        return tf.data.Dataset.from_tensor_slices(list(self.paths)).interleave(
            lambda path: tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER_BYTES),
            cycle_length=_PARALLEL_READS,
            block_length=_BLOCK,
            num_parallel_calls=_PARALLEL_READS,
        )

    def read(self, shard: tf.Tensor) -> tf.data.Dataset:
        """Return the examples of the file number `shard` in order."""
        path = tf.gather(tf.constant(self.paths), shard)
        if not self.damaged:
            return tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER_BYTES)
        # TensorFlow's reader stops at a corrupt record, so the readable records of a damaged file
        # are cut out by offset. One of the two data sets is empty.
        damaged = tf.gather(tf.constant([path in self.damaged for path in self.paths]), shard)
        whole = tf.data.TFRecordDataset(tf.boolean_mask([path], [tf.logical_not(damaged)]))
        places = tf.ragged.constant(
            [[list(place) for place in self.damaged.get(path, ())] for path in self.paths],
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
