"""Measure how long the compiled loop waits for its input."""

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.input.deal import NextBatch


class TimedInput:
    """A source of batches that measures how long the loop waits for it.

    Reads the clock of the machine that runs the loop, before and after each batch. A batch that is
    ready takes almost no time.
    """

    def __init__(self, next_batch: NextBatch, cluster: Cluster) -> None:
        """Measure `next_batch`."""
        self._next_batch = next_batch
        with cluster.on_loop_device():
            self._seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)
        self._before = 0.0

    def __call__(self) -> tuple[tf.Tensor, ...]:
        """Return the next batch; called inside the compiled loop."""
        begun = tf.timestamp()
        with tf.control_dependencies([begun]):
            batch = self._next_batch()
        with tf.control_dependencies(tf.nest.flatten(batch, expand_composites=True)):
            self._seconds.assign_add(tf.timestamp() - begun)
        return batch

    def seconds_since_last_call(self) -> float:
        """Return the seconds waited since the previous call of this method."""
        now = float(self._seconds.numpy())
        waited, self._before = now - self._before, now
        return waited
