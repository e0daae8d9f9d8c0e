"""Batches of training examples from files that are too large for memory.

An epoch's examples are divided into lanes of equal length, and each batch takes the same number
from every lane. Lanes are read in parallel, and a host reads only the lanes of its rows. The number
of lanes, and with it the order, depends on the data and the batch, not on the number of hosts.
"""

import math

import tensorflow as tf

from tpu_training.data.input import order
from tpu_training.data.input.order import Plan
from tpu_training.data.input.shards import Shards

_MOST_LANES = 16
# Memory for the windows of all lanes; each lane holds one in use and one prefetched.
_WINDOW_BYTES = 128 << 20
_LARGEST_WINDOW = 16384


def batches_from_files(shards: Shards, plan: Plan) -> tf.data.Dataset:
    """Return (step, serialised examples) from the plan's first step on, endlessly.

    Each epoch reads the shards in a random order, in windows that are shuffled internally. If the
    examples do not divide by the lanes, an epoch leaves out the remainder, different ones each
    time. To start within an epoch, whole shards and windows are skipped unread.
    """
    lanes = _lanes(len(shards.paths), plan.batch)
    width, length = plan.batch // lanes, shards.examples // lanes
    window = max(1, min(_LARGEST_WINDOW, _WINDOW_BYTES // lanes // shards.bytes_per_example))
    first, last = plan.begin // width, -(-plan.end // width)

    def lane_batches(lane: tf.Tensor) -> tf.data.Dataset:
        first_epoch, offset = plan.start(width, length)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            skipped = tf.where(number == first_epoch, tf.constant(offset, tf.int64), 0)
            return _lane_of_epoch(shards, plan.seed, number, lane, length, window, skipped)

        epochs = order.epochs_from(first_epoch).flat_map(epoch)
        return epochs.prefetch(1).rebatch(width, drop_remainder=True)

    parts = tf.data.Dataset.range(first, last).interleave(
        lane_batches,
        cycle_length=last - first,
        num_parallel_calls=last - first,
        deterministic=True,
    )
    rows = slice(plan.begin - first * width, plan.end - first * width)

    def join(step: tf.Tensor, part: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return step, tf.reshape(tf.reshape(part, [-1])[rows], [plan.rows])

    steps = tf.data.Dataset.range(plan.first_step, tf.int64.max)
    joined = parts.batch(last - first, drop_remainder=True)
    return tf.data.Dataset.zip((steps, joined)).map(join)


def _lanes(shards: int, batch: int) -> int:
    """Return the largest power of two that divides the batch and is at most the shard count."""
    return min(math.gcd(batch, _MOST_LANES), 1 << (shards.bit_length() - 1))


def _lane_of_epoch(
    shards: Shards,
    seed: int,
    epoch: tf.Tensor,
    lane: tf.Tensor,
    length: int,
    window: int,
    skipped: tf.Tensor,
) -> tf.data.Dataset:
    """Return the lane's examples of `epoch` in vectors, without the first `skipped` ones."""
    chosen = order.permutation(len(shards.paths), order.key(seed, order.SHARDS, epoch))
    counts = tf.gather(tf.constant(shards.counts, tf.int64), chosen)
    starts = tf.cumsum(counts, exclusive=True)
    first_window = skipped // window
    begin, end = lane * length + first_window * window, (lane + 1) * length
    # The part of each shard, in the epoch's order of shards, that lies in this lane.
    skip = tf.clip_by_value(begin - starts, 0, counts)
    take = tf.clip_by_value(end - starts, 0, counts) - skip
    parts = tf.data.Dataset.from_tensor_slices((chosen, skip, take))
    parts = parts.filter(lambda shard, skip, take: take > 0)
    records = parts.flat_map(lambda shard, skip, take: shards.read(shard).skip(skip).take(take))

    def shuffle(number: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
        seeds = order.key(seed, order.WINDOWS, epoch, lane, number)
        shuffled = tf.gather(content, order.permutation(tf.size(content), seeds))
        return shuffled[tf.where(number == first_window, skipped % window, 0) :]

    windows = records.batch(window).enumerate(first_window)
    return windows.map(shuffle)
