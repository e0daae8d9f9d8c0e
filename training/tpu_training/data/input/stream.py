"""Batches of training examples from files that are too large for memory.

An epoch's examples are divided into lanes of equal length, and each batch takes the same number
from every lane. Lanes are read in parallel, and a host reads only the lanes of its rows. The number
of lanes, and with it the order, depends on the data and the batch, not on the number of hosts.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data.input import order
from tpu_training.data.input.blocks import Blocks
from tpu_training.data.input.order import Plan
from tpu_training.data.input.shards import Shards

_MOST_LANES = 16
# A step's examples come from so many, those of the windows of all lanes, where records are indexed;
# ImageNet's take 1.1 GB. Each lane holds one window in use, one prefetched and one half read.
_WINDOW_EXAMPLES = 10_000
# Fewer of larger ones: a tenth of a small host's 16 GB. The host's own memory must not decide, or
# a job would not go on with the same examples on another one.
_MOST_WINDOW_BYTES = 1536 << 20
# More of small ones, and all without an index.
_WINDOW_BYTES = 128 << 20
# In each lane.
_LARGEST_WINDOW = 16384
# Neighbours in a block meet again in every epoch: a 200th of what a lane's window holds, they raise
# the correlation of neighbours by 0.005 (`make bench ONLY=shuffle`). ImageNet's blocks take 440 kB.
_BLOCKS_PER_WINDOW = 200


class Pieces(Protocol):
    """Parts of a split that an epoch puts into a random order, each with `counts` examples."""

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        """The number of examples in each piece."""

    def read(self, pieces: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.data.Dataset:
        """Return the examples of `pieces`, of each some left out and so many taken."""


@dataclass(frozen=True)
class _Files:
    """Whole files, of which nobody knows where their records begin."""

    shards: Shards

    @property
    def counts(self) -> npt.NDArray[np.int64]:
        return np.array(self.shards.counts, np.int64)

    def read(self, pieces: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((pieces, skip, take)).flat_map(
            lambda shard, skip, take: self.shards.read(shard).skip(skip).take(take)
        )


def batches_from_files(
    shards: Shards, plan: Plan, offsets: Sequence[npt.NDArray[np.int64]] | None = None
) -> tf.data.Dataset:
    """Return (step, serialised examples) from the plan's first step on, endlessly.

    Each epoch reads the files, or with the `offsets` of their records small blocks of them, in a
    random order, in windows that are shuffled internally. If the examples do not divide by the
    lanes, an epoch leaves out the remainder, different ones each time. To start within an epoch,
    whole pieces and windows are skipped unread.
    """
    indexed = offsets is not None
    lanes = _lanes(shards.examples if indexed else len(shards.paths), plan.batch)
    width, length = plan.batch // lanes, shards.examples // lanes
    window = _window(shards, lanes, indexed)
    pieces: Pieces = _Files(shards)
    if offsets is not None:
        pieces = Blocks(shards, offsets, 1 + window // _BLOCKS_PER_WINDOW)
    first, last = plan.begin // width, -(-plan.end // width)

    def lane_batches(lane: tf.Tensor) -> tf.data.Dataset:
        first_epoch, offset = plan.start(width, length)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            skipped = tf.where(number == first_epoch, tf.constant(offset, tf.int64), 0)
            return _lane_of_epoch(pieces, plan.seed, number, lane, length, window, skipped)

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


def _window(shards: Shards, lanes: int, indexed: bool) -> int:
    """Return the number of examples in the window of each lane."""
    examples = _WINDOW_BYTES // shards.bytes_per_example
    if indexed:
        most = _MOST_WINDOW_BYTES // shards.bytes_per_example
        examples = max(examples, min(_WINDOW_EXAMPLES, most))
    return max(1, min(_LARGEST_WINDOW, examples // lanes))


def _lanes(pieces: int, batch: int) -> int:
    """Return the largest power of two that divides the batch and is at most the piece count."""
    return min(math.gcd(batch, _MOST_LANES), 1 << (pieces.bit_length() - 1))


def _lane_of_epoch(
    pieces: Pieces,
    seed: int,
    epoch: tf.Tensor,
    lane: tf.Tensor,
    length: int,
    window: int,
    skipped: tf.Tensor,
) -> tf.data.Dataset:
    """Return the lane's examples of `epoch` in vectors, without the first `skipped` ones."""
    chosen = order.permutation(len(pieces.counts), order.key(seed, order.SHARDS, epoch))
    counts = tf.gather(tf.constant(pieces.counts), chosen)
    starts = tf.cumsum(counts, exclusive=True)
    first_window = skipped // window
    begin, end = lane * length + first_window * window, (lane + 1) * length
    # The part of each piece, in the epoch's order of pieces, that lies in this lane.
    skip = tf.clip_by_value(begin - starts, 0, counts)
    take = tf.clip_by_value(end - starts, 0, counts) - skip
    here = tf.where(take > 0)[:, 0]
    records = pieces.read(*(tf.gather(part, here) for part in (chosen, skip, take)))

    def shuffle(number: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
        seeds = order.key(seed, order.WINDOWS, epoch, lane, number)
        shuffled = tf.gather(content, order.permutation(tf.size(content), seeds))
        return shuffled[tf.where(number == first_window, skipped % window, 0) :]

    windows = records.batch(window).enumerate(first_window)
    return windows.map(shuffle)
