"""Batches of training examples from memory: read all once, then gather whole batches."""

import tensorflow as tf

from tpu_training.data.input import order
from tpu_training.data.input.order import Plan
from tpu_training.data.manifest import Manifest
from tpu_training.data.preprocessing.parse import parse_examples


def batches_from_memory(
    records: tf.data.Dataset, examples: int, manifest: Manifest, plan: Plan
) -> tf.data.Dataset:
    """Return (step, features, labels) from the plan's first step on, endlessly.

    `records` holds `examples` serialised examples. Each epoch is one random order of all of them; a
    batch may span two epochs. No per-example work remains, which dominates if examples are small.
    """
    first_epoch, offset = plan.start(plan.batch, examples)

    def epoch_order(epoch: tf.Tensor) -> tf.Tensor:
        shuffled = order.permutation(examples, order.key(plan.seed, order.EXAMPLES, epoch))
        return shuffled[tf.where(epoch == first_epoch, offset, 0) :]

    def batches(features: tf.Tensor, labels: tf.Tensor) -> tf.data.Dataset:
        orders = order.epochs_from(first_epoch).map(epoch_order).prefetch(1)
        chosen = orders.rebatch(plan.batch, drop_remainder=True)

        def gather(step: tf.Tensor, rows: tf.Tensor) -> tuple[tf.Tensor, ...]:
            mine = rows[plan.begin : plan.end]
            return step, tf.gather(features, mine), tf.gather(labels, mine)

        steps = tf.data.Dataset.range(plan.first_step, tf.int64.max)
        return tf.data.Dataset.zip((steps, chosen)).map(gather)

    def parse(serialised: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return parse_examples(tf.ensure_shape(serialised, [examples]), manifest)

    return records.batch(examples).take(1).map(parse).flat_map(batches)
