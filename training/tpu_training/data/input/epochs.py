"""Batches of training examples from a function that gives those of an epoch."""

from collections.abc import Callable

import tensorflow as tf

from tpu_training.data.input import order
from tpu_training.data.input.order import Plan

# the number of an epoch -> its examples, features and targets
Epoch = Callable[[tf.Tensor], tf.data.Dataset]


def batches_of_epochs(epoch: Epoch, examples: int, plan: Plan) -> tf.data.Dataset:
    """Return (step, features, targets) from the plan's first step on, endlessly.

    Each epoch gives `examples`. The first one is read from its beginning, and what comes before the
    step is left out: nobody else knows how to begin within it. So does each host with the rows of
    the others.
    """
    first_epoch, offset = plan.start(plan.batch, examples)

    def rest(number: tf.Tensor) -> tf.data.Dataset:
        return epoch(number).skip(tf.where(number == first_epoch, tf.cast(offset, tf.int64), 0))

    def mine(step: tf.Tensor, whole: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, ...]:
        return step, *(part[plan.begin : plan.end] for part in whole)

    batches = order.epochs_from(first_epoch).flat_map(rest).batch(plan.batch, drop_remainder=True)
    steps = tf.data.Dataset.range(plan.first_step, tf.int64.max)
    return tf.data.Dataset.zip((steps, batches)).map(mine)
