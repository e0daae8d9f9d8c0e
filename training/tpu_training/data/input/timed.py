"""Measure how long the compiled loop waits for its input."""

from collections.abc import Sequence

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.input.deal import NextBatch


class TimedInput:
    """A source of batches that measures how long the loop waits for it.

    Reads the clock of the machine that runs the loop, when a step begins and when the first host
    has its share of the batch; a batch that is ready takes almost no time. The other hosts are not
    waited for: that would tie all of them together in each step. They read as much as the first.
    """

    def __init__(self, next_batch: NextBatch, cluster: Cluster) -> None:
        """Measure `next_batch`."""
        self._next_batch = next_batch
        self._strategy = cluster.strategy
        with cluster.on_loop_device():
            self._seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def __call__(self) -> tuple[tf.Tensor, ...]:
        """Return the next batch; called inside the compiled loop."""
        # A step begins when the one before has ended, so the clock need not hold back the input.
        begun = tf.timestamp()
        batch = self._next_batch()
        with tf.control_dependencies(self._of_first_host(batch)):
            self._seconds.assign_add(tf.timestamp() - begun, read_value=False)
        return batch

    def _of_first_host(self, batch: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        values = [
            value for part in batch for value in self._strategy.experimental_local_results(part)
        ]
        return [value for value in values if _host(value) == _host(values[0])]

    def reset(self) -> None:
        """Start again from 0; called in the compiled loop before its first step."""
        self._seconds.assign(0.0, read_value=False)

    def seconds(self) -> tf.Tensor:
        """Return the seconds waited since the last reset, float32; called in the compiled loop."""
        return tf.cast(self._seconds, tf.float32)


def _host(value: tf.Tensor) -> int | None:
    """Return the number of the host on whose device `value` is."""
    task: int | None = tf.DeviceSpec.from_string(value.device).task
    return task
