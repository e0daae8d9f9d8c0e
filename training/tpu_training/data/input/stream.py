"""Batches of training examples from files that are too large for memory.

TensorFlow reads 64 MiB of an object in a bucket, or what is left of it, for each request, and keeps
nothing once the file is closed (https://github.com/tensorflow/tensorflow/issues/30327, 2019-07-02).
So files are read whole and from their beginning; `data convert` makes them small enough to mix.

An epoch puts the files into a random order and divides their examples into lanes of equal length.
Each batch takes the same number from every lane, which shuffles its examples in windows. Lanes are
read in parallel, and a host reads only the lanes of its rows. The number of lanes, and with it the
order, depends on the data and the batch, not on the number of hosts.
"""

import math

import tensorflow as tf

from tpu_training.data.input import order
from tpu_training.data.input.order import Plan
from tpu_training.data.input.shards import Shards

# The file in which one lane ends and the next begins is read for both.
_FILES_PER_LANE = 10
# As many as the hosts of most slices, and more where the batch is that of a larger one.
_MOST_LANES, _ROWS_PER_LANE = 96, 64
# The windows of all lanes together: a hundred files of 16 MiB, so that two examples of a batch come
# from the same file, and meet again in every epoch, in one of a hundred cases (`make bench
# ONLY=shuffle`). A lane holds one window in use and one that is read. The host's own memory must
# not decide, or a job would not go on with the same examples on another one.
_WINDOW_BYTES = 1600 << 20
# Files that a host reads at once, or one for each of its lanes.
_READS_AT_ONCE = 16


def batches_from_files(shards: Shards, plan: Plan) -> tf.data.Dataset:
    """Return (step, serialised examples) from the plan's first step on, endlessly.

    If the examples do not divide by the lanes, an epoch leaves out the remainder, different ones
    each time. To start within an epoch, whole files and windows are skipped unread.
    """
    lanes = _lanes(len(shards.paths), plan.batch)
    width, length = plan.batch // lanes, shards.examples // lanes
    window = _window(shards, lanes)
    first, last = plan.begin // width, -(-plan.end // width)
    reads = max(1, _READS_AT_ONCE // (last - first))

    def lane_batches(lane: tf.Tensor) -> tf.data.Dataset:
        first_epoch, offset = plan.start(width, length)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            skipped = tf.where(number == first_epoch, tf.constant(offset, tf.int64), 0)
            return _lane_of_epoch(shards, plan.seed, number, lane, length, window, skipped, reads)

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


def _window(shards: Shards, lanes: int) -> int:
    """Return the number of examples in the window of each lane."""
    return max(1, _WINDOW_BYTES // (lanes * shards.bytes_per_example))


def _lanes(files: int, batch: int) -> int:
    """Return a number that divides the batch, and that usual numbers of hosts divide."""
    most = min(files // _FILES_PER_LANE, max(_MOST_LANES, batch // _ROWS_PER_LANE))
    shared = math.gcd(batch, 3 << 20)
    return max(lanes for lanes in range(1, max(1, most) + 1) if shared % lanes == 0)


def _lane_of_epoch(
    shards: Shards,
    seed: int,
    epoch: tf.Tensor,
    lane: tf.Tensor,
    length: int,
    window: int,
    skipped: tf.Tensor,
    reads: int,
) -> tf.data.Dataset:
    """Return the lane's examples of `epoch` in vectors, without the first `skipped` ones."""
    chosen = order.permutation(len(shards.paths), order.key(seed, order.SHARDS, epoch))
    counts = tf.gather(tf.constant(shards.counts, tf.int64), chosen)
    starts = tf.cumsum(counts, exclusive=True)
    first_window = skipped // window
    begin, end = lane * length + first_window * window, (lane + 1) * length
    # The part of each file, in the epoch's order of files, that lies in this lane.
    skip = tf.clip_by_value(begin - starts, 0, counts)
    take = tf.clip_by_value(end - starts, 0, counts) - skip
    here = tf.where(take > 0)[:, 0]
    parts = tf.data.Dataset.from_tensor_slices(
        tuple(tf.gather(part, here) for part in (chosen, skip, take))
    )
    files = parts.map(shards.read_slice, num_parallel_calls=reads, deterministic=True)

    def shuffle(number: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
        seeds = order.key(seed, order.WINDOWS, epoch, lane, number)
        shuffled = tf.gather(content, order.permutation(tf.size(content), seeds))
        return shuffled[tf.where(number == first_window, skipped % window, 0) :]

    return files.rebatch(window).enumerate(first_window).map(shuffle)
