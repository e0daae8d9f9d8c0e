"""Batches of a host's share of the test examples, in files that only this host reads."""

import tensorflow as tf

from tpu_training.data.input.order import Plan
from tpu_training.data.input.shards import Shards


def batches_of_share(shards: Shards, plan: Plan, steps: int) -> tf.data.Dataset:
    """Return (step, serialised examples, weights), the plan's rows of each of `steps` batches.

    The share is as large a part of the examples as the rows are of a batch. Every example has
    weight 1. What fills the last batches has weight 0: all hosts have the same number of batches. A
    number of batches other than `steps` means that the files hold other examples than announced.
    """
    rows, whole = plan.rows, plan.rows == plan.batch
    begin, end = (row * shards.examples // plan.batch for row in (plan.begin, plan.end))

    def fill(serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        places, count = tf.range(rows), tf.size(serialised)
        filled = tf.gather(serialised, tf.where(places < count, places, 0))
        return filled, tf.cast(places < count, tf.float32)

    def fill_all(serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.repeat(serialised, rows), tf.zeros(rows)

    share = shards.read_all() if whole else shards.read_part(begin, end)
    missing = steps - -(-(end - begin) // rows)
    empty = shards.read_all().take(1).batch(1).map(fill_all).repeat(missing)
    batches = share.batch(rows).map(fill).concatenate(empty)
    return batches.enumerate().map(lambda step, batch: (step, *batch))
