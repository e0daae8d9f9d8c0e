"""The files of a split, and the order in which their examples make batches.

The order is computed in the graph, as a pure function of seed and epoch.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.data.experimental.ops.testing import sleep

from tpu_training.data.manifest import DIGITS, Manifest
from tpu_training.data.preprocessing import parse_examples

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


_READ_BUFFER_BYTES = 8 << 20
_PARALLEL_READS = 4
# Examples taken from a file in turn; for small ones twice as fast as one by one.
_BLOCK = 16

# Makes one number of a file's and a record's.
_RECORDS_PER_FILE = 1 << 40
_SELECTED_AT_ONCE = 256


@dataclass(frozen=True)
class Shards:
    """The files of one split: their paths, the examples in each, and the total bytes.

    Where a split is a part of its files' records, `held` has the numbers of some in each file:
    those alone belong to it, or all but those if `without_held`. The first epoch of a stream has
    the files in the order in which they were written. `progress` is the file that says how many are
    there while the others are still written.
    """

    paths: tuple[str, ...]
    counts: tuple[int, ...]
    bytes: int
    held: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    without_held: bool = False
    stream: bool = False
    progress: str = ""

    @property
    def examples(self) -> int:
        """The number of examples in all files."""
        return sum(self.counts)

    @property
    def bytes_per_example(self) -> int:
        """The mean size of an example, at least 1."""
        return max(1, self.bytes // self.examples)

    @property
    def window(self) -> int:
        """The examples in the window of a stream: so many as a conversion finishes together."""
        return max(1, self.examples * _FILES_PER_WINDOW // len(self.paths))

    def files_until(self, examples: int) -> int:
        """Return how many files a stream reads for so many of its examples, and their windows."""
        windows = -(-min(examples, self.examples) // self.window)
        needed = min(windows * self.window, self.examples)
        return int(np.searchsorted(np.cumsum(self.counts), needed)) + 1

    def when_there(self, shard: tf.Tensor, *part: tf.Tensor) -> tf.data.Dataset:
        """Return one element, the arguments, once the file number `shard` is there."""
        later = tf.data.Dataset.range(tf.int64.max).apply(sleep(int(LOOK_SECONDS * 1e6)))

        def is_there(look: tf.Tensor) -> tf.Tensor:
            # TensorFlow reads a file of constant name once, when it compiles this.
            path = tf.gather([self.progress], tf.minimum(look, 0))
            count = tf.strings.substr(tf.io.read_file(path), 0, DIGITS)
            return tf.strings.to_number(count, tf.int32) > tf.cast(shard, tf.int32)

        looks = tf.data.Dataset.range(1).concatenate(later).filter(is_there)
        return looks.take(1).map(lambda _: (shard, *part))

    def read_all(self) -> tf.data.Dataset:
        """Return every example, always in the same order."""
        return self.read_part(0, self.examples)

    def read_part(self, begin: int, end: int) -> tf.data.Dataset:
        """Return the examples from number `begin` up to `end`, from no other files than theirs."""
        counts = np.array(self.counts, np.int64)
        starts = np.cumsum(counts) - counts
        skip = np.clip(begin - starts, 0, counts)
        take = np.clip(end - starts, 0, counts) - skip
        # The last part of a file has no end, so that records beyond the announced ones are noticed.
        parts = np.stack([np.arange(len(counts)), skip, np.where(skip + take < counts, take, -1)])
        return tf.data.Dataset.from_tensor_slices(parts.T[take > 0]).interleave(
            lambda part: self.read(part[0]).skip(part[1]).take(part[2]),
            cycle_length=_PARALLEL_READS,
            block_length=_BLOCK,
            num_parallel_calls=_PARALLEL_READS,
        )

    def read(self, shard: tf.Tensor) -> tf.data.Dataset:
        """Return the split's examples in the file number `shard` in order."""
        path = tf.gather(tf.constant(self.paths), shard)
        records = tf.data.TFRecordDataset(path, buffer_size=_READ_BUFFER_BYTES)
        return self._select(records, shard) if self.held else records

    def read_slice(self, shard: tf.Tensor, skip: tf.Tensor, take: tf.Tensor) -> tf.Tensor:
        """Return `take` of a file's examples that follow the first `skip`, which are read, too."""
        return self.read(shard).skip(skip).take(take).batch(take).get_single_element()

    def _own(self, shard: tf.Tensor, first: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
        """Return which records of a file, from number `first` on, belong to the split."""
        keys = [
            number * _RECORDS_PER_FILE + self.held.get(path, np.zeros(0, np.int64))
            for number, path in enumerate(self.paths)
        ]
        held = tf.constant(np.concatenate(keys), tf.int64)
        numbers = first + tf.range(tf.size(content, tf.int64))
        numbers += tf.cast(shard, tf.int64) * _RECORDS_PER_FILE
        places = tf.minimum(tf.searchsorted(held, numbers), tf.size(held) - 1)
        return tf.equal(tf.gather(held, places), numbers) ^ self.without_held

    def _select(self, records: tf.data.Dataset, shard: tf.Tensor) -> tf.data.Dataset:
        """Leave out those of a file's `records` that are not of this split."""

        def select(batch: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
            return tf.boolean_mask(content, self._own(shard, batch * _SELECTED_AT_ONCE, content))

        return records.batch(_SELECTED_AT_ONCE).enumerate().map(select).unbatch()


# TensorFlow reads 64 MiB of an object in a bucket, or what is left of it, for each request, and
# keeps nothing once the file is closed (https://github.com/tensorflow/tensorflow/issues/30327,
# 2019-07-02). So files are read whole and from their beginning; `data convert` makes them small
# enough to mix. An epoch puts the files into a random order and divides their examples into lanes
# of equal length. Each batch takes the same number from every lane, which shuffles its examples in
# windows. Lanes are read in parallel, and a host reads only the lanes of its rows. The number of
# lanes, and with it the order, depends on the data and the batch, not on the number of hosts.

# The file in which one lane ends and the next begins is read for both.
_FILES_PER_LANE = 10
# As many as the hosts of most slices, and more where the batch is that of a larger one.
_MOST_LANES, _ROWS_PER_LANE = 96, 64
# The windows of all lanes together: a hundred files of 16 MiB, so that two examples of a batch come
# from the same file, and meet again in every epoch, in one of a hundred cases (`make bench
# ONLY=shuffle`). A lane holds one window in use and one that is read. The host's own memory must
# not decide, or a job would resume with other examples on another host.
_WINDOW_BYTES = 1600 << 20
# Files that a host reads at once, or one for each of its lanes.
_READS_AT_ONCE = 16
# A stream has one lane, because the next file to come would be the last one's: each host reads
# everything. Its windows are the files that a conversion into a bucket writes at the same time.
_FILES_PER_WINDOW = 64
LOOK_SECONDS = 5.0


def batches_from_files(shards: Shards, plan: Plan) -> tf.data.Dataset:
    """Return (step, serialised examples) from the plan's first step on, endlessly.

    If the examples do not divide by the lanes, an epoch leaves out the remainder, different ones
    each time. To start within an epoch, whole files and windows are skipped unread.
    """
    lanes = 1 if shards.stream else _lanes(len(shards.paths), plan.batch)
    width, length = plan.batch // lanes, shards.examples // lanes
    window = shards.window if shards.stream else _window(shards, lanes)
    first, last = plan.begin // width, -(-plan.end // width)
    reads = max(1, _READS_AT_ONCE // (last - first))

    def lane_batches(lane: tf.Tensor) -> tf.data.Dataset:
        first_epoch, offset = plan.start(width, length)

        def epoch(number: tf.Tensor) -> tf.data.Dataset:
            skipped = tf.where(number == first_epoch, tf.constant(offset, tf.int64), 0)
            return _lane_of_epoch(shards, plan.seed, number, lane, length, window, skipped, reads)

        epochs = epochs_from(first_epoch).flat_map(epoch)
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
    """Return the examples in a lane's window: all windows together keep to the bytes allowed."""
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
    chosen = permutation(len(shards.paths), key(seed, SHARDS, epoch))
    if shards.stream:
        chosen = tf.where(epoch == 0, tf.range(len(shards.paths)), chosen)
    counts = tf.gather(tf.constant(shards.counts, tf.int64), chosen)
    starts = tf.cumsum(counts, exclusive=True)
    first_window = skipped // window
    begin, end = lane * length + first_window * window, (lane + 1) * length
    # The part of each file, in the epoch's order of files, that belongs to this lane.
    skip = tf.clip_by_value(begin - starts, 0, counts)
    take = tf.clip_by_value(end - starts, 0, counts) - skip
    used = tf.where(take > 0)[:, 0]
    parts = tf.data.Dataset.from_tensor_slices(
        tuple(tf.gather(part, used) for part in (chosen, skip, take))
    )
    if shards.progress:
        parts = parts.flat_map(shards.when_there)
    files = parts.map(shards.read_slice, num_parallel_calls=reads, deterministic=True)

    def shuffle(number: tf.Tensor, content: tf.Tensor) -> tf.Tensor:
        seeds = key(seed, WINDOWS, epoch, lane, number)
        shuffled = tf.gather(content, permutation(tf.size(content), seeds))
        return shuffled[tf.where(number == first_window, skipped % window, 0) :]

    return files.rebatch(window).enumerate(first_window).map(shuffle)


def batches_from_memory(
    records: tf.data.Dataset, examples: int, manifest: Manifest, plan: Plan
) -> tf.data.Dataset:
    """Return (step, features, labels) from the plan's first step on, endlessly.

    `records` holds `examples` serialised examples. Each epoch is one random order of all of them; a
    batch may span two epochs. No per-example work remains, which dominates if examples are small.
    """
    first_epoch, offset = plan.start(plan.batch, examples)

    def epoch_order(epoch: tf.Tensor) -> tf.Tensor:
        shuffled = permutation(examples, key(plan.seed, EXAMPLES, epoch))
        return shuffled[tf.where(epoch == first_epoch, offset, 0) :]

    def batches(*examples: Any) -> tf.data.Dataset:
        orders = epochs_from(first_epoch).map(epoch_order).prefetch(1)
        chosen = orders.rebatch(plan.batch, drop_remainder=True)

        def gather(step: tf.Tensor, rows: tf.Tensor) -> tuple[Any, ...]:
            mine = rows[plan.begin : plan.end]
            return step, *tf.nest.map_structure(lambda each: tf.gather(each, mine), examples)

        steps = tf.data.Dataset.range(plan.first_step, tf.int64.max)
        return tf.data.Dataset.zip((steps, chosen)).map(gather)

    def parse(serialised: tf.Tensor) -> tuple[Any, Any]:
        return parse_examples(tf.ensure_shape(serialised, [examples]), manifest)

    return records.batch(examples).take(1).map(parse).flat_map(batches)


# the number of an epoch -> its examples, features and targets
Epoch = Callable[[tf.Tensor], tf.data.Dataset]


def batches_of_epochs(epoch: Epoch, examples: int, plan: Plan) -> tf.data.Dataset:
    """Return (step, features, targets) from the plan's first step on, endlessly.

    Each epoch gives `examples`. The first one is read from its beginning, and what comes before the
    step is skipped: a function has no other way to begin within an epoch. Each host skips the rows
    of the others likewise.
    """
    first_epoch, offset = plan.start(plan.batch, examples)

    def rest(number: tf.Tensor) -> tf.data.Dataset:
        return epoch(number).skip(tf.where(number == first_epoch, tf.cast(offset, tf.int64), 0))

    def mine(step: tf.Tensor, whole: tuple[Any, ...]) -> tuple[Any, ...]:
        return step, *tf.nest.map_structure(lambda part: part[plan.begin : plan.end], whole)

    batches = epochs_from(first_epoch).flat_map(rest).batch(plan.batch, drop_remainder=True)
    steps = tf.data.Dataset.range(plan.first_step, tf.int64.max)
    return tf.data.Dataset.zip((steps, batches)).map(mine)


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

    def fill(*parts: Any) -> tuple[Any, ...]:
        places, count = tf.range(rows), tf.shape(tf.nest.flatten(parts)[0])[0]
        chosen = tf.where(places < count, places, 0)
        filled = tf.nest.map_structure(lambda part: tf.gather(part, chosen), parts)
        return *filled, tf.cast(places < count, tf.float32)

    def fill_all(*parts: Any) -> tuple[Any, ...]:
        repeated = tf.nest.map_structure(lambda part: tf.repeat(part, rows, axis=0), parts)
        return *repeated, tf.zeros(rows)

    share = readable.read_all() if whole else readable.read_part(begin, end)
    missing = steps - -(-(end - begin) // rows)
    empty = readable.read_part(0, 1).take(1).batch(1).map(fill_all).repeat(missing)
    batches = share.batch(rows).map(fill).concatenate(empty)
    return batches.enumerate().map(lambda step, batch: (step, *batch))
