"""Compute the order of the examples in the graph, as a pure function of seed and epoch."""

from dataclasses import dataclass

import tensorflow as tf

# Separate streams of random numbers for the same seed.
EXAMPLES, SHARDS, WINDOWS, AUGMENTATION, FUNCTION = range(5)


@dataclass(frozen=True)
class Plan:
    """The examples of a host: rows `begin` to `end` - 1 of each global batch of `batch`.

    Step s covers the positions s * batch to (s + 1) * batch - 1 of an endless sequence of epochs,
    whatever the number of hosts and replicas that share it. `first_step` is the first one to read.
    """

    seed: int
    batch: int
    first_step: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """The number of examples in each batch of this host."""
        return self.end - self.begin

    def start(self, width: int, examples: int) -> tuple[int, int]:
        """Return the first epoch and the position in it, taking `width` of `examples` per step."""
        return divmod(self.first_step * width, examples)


def key(seed: int, *numbers: int | tf.Tensor) -> tf.Tensor:
    """Derive a seed for TensorFlow's stateless operations, unique to each combination."""
    folded = tf.constant([seed, 0], tf.int64)
    for number in numbers:
        folded = tf.random.experimental.stateless_fold_in(folded, tf.cast(number, tf.int64))
    return folded


def permutation(count: int | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Return the numbers 0 to `count` - 1 in random order."""
    draws = tf.random.stateless_uniform([count], seed, minval=None, maxval=None, dtype=tf.int32)
    return tf.argsort(draws)


def epochs_from(first: int) -> tf.data.Dataset:
    """Count from `first` endlessly."""
    return tf.data.Dataset.range(first, tf.int64.max)
