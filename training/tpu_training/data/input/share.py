"""Batches of a host's share of the test examples, in files that only this host reads."""

from typing import Protocol

import tensorflow as tf

from tpu_training.data.input.order import Plan


class _Readable(Protocol):
    """The examples of a split, as serialised ones or as several tensors each."""

    @property
    def examples(self) -> int: ...
    def read_all(self) -> tf.data.Dataset: ...
    def read_part(self, begin: int, end: int, /) -> tf.data.Dataset: ...


def batches_of_share(readable: _Readable, plan: Plan, steps: int) -> tf.data.Dataset:
    """Return (step, *examples, weights), the plan's rows of each of `steps` batches.

    The share is as large a part of the examples as the rows are of a batch. Every example has
    weight 1. What fills the last batches has weight 0: all hosts have the same number of batches. A
    number of batches other than `steps` means that the files hold other examples than announced.
    """
    rows, whole = plan.rows, plan.rows == plan.batch
    begin, end = (row * readable.examples // plan.batch for row in (plan.begin, plan.end))

    def fill(*parts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        places, count = tf.range(rows), tf.shape(parts[0])[0]
        chosen = tf.where(places < count, places, 0)
        return *(tf.gather(part, chosen) for part in parts), tf.cast(places < count, tf.float32)

    def fill_all(*parts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        return *(tf.repeat(part, rows, axis=0) for part in parts), tf.zeros(rows)

    share = readable.read_all() if whole else readable.read_part(begin, end)
    missing = steps - -(-(end - begin) // rows)
    empty = readable.read_part(0, 1).take(1).batch(1).map(fill_all).repeat(missing)
    batches = share.batch(rows).map(fill).concatenate(empty)
    return batches.enumerate().map(lambda step, batch: (step, *batch))
