"""The order of the examples: a pure function of the seed and the epoch, computed in the graph."""

from dataclasses import dataclass

import tensorflow as tf

# Streams of random numbers that must not be the same for the same seed.
EXAMPLES, SHARDS, WINDOWS, AUGMENTATION = range(4)


@dataclass(frozen=True)
class Plan:
    """Which examples a host gets: rows `begin` to `end` - 1 of each global batch of `batch`.

    Step s consists of the positions s * batch to (s + 1) * batch - 1 of an endless row of epochs,
    whatever the number of hosts and replicas that share them; `first_step` is where it starts.
    """

    seed: int
    batch: int
    first_step: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """Examples in each batch of this host."""
        return self.end - self.begin

    def start(self, width: int, examples: int) -> tuple[int, int]:
        """Epoch and position in it of one who takes `width` of `examples` examples a step."""
        return divmod(self.first_step * width, examples)


def key(seed: int, *numbers: int | tf.Tensor) -> tf.Tensor:
    """Two numbers for TensorFlow's stateless operations, others for each combination."""
    folded = tf.constant([seed, 0], tf.int64)
    for number in numbers:
        folded = tf.random.experimental.stateless_fold_in(folded, tf.cast(number, tf.int64))
    return folded


def permutation(count: int | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The numbers 0 to `count` - 1 in random order."""
    draws = tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.int32)
    return tf.argsort(draws)


def epochs_from(first: int) -> tf.data.Dataset:
    """The numbers `first`, `first` + 1 … without end."""
    return tf.data.Dataset.range(first, tf.int64.max)
