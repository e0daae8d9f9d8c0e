"""How well the input pipeline shuffles: it reads numbers, and neighbours should be far apart."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data import shards as streams
from tpu_training.data.shards import Plan, Shards

_Numbers = npt.NDArray[np.int64]
# A record has a head and a tail: https://www.tensorflow.org/tutorials/load_data/tfrecord
_BYTES, _AROUND = 8, 16


def write_numbers(folder: Path, examples: int, files: int) -> Shards:
    """Write the numbers from 0 as records, dealt to files in turn."""
    paths = [str(folder / f"{number}.tfrecord") for number in range(files)]
    counts = [len(range(number, examples, files)) for number in range(files)]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(path) as writer:
            for value in range(number, examples, files):
                writer.write(value.to_bytes(_BYTES, "little"))
    return Shards(tuple(paths), tuple(counts), examples * (_BYTES + _AROUND))


def read_epochs(shards: Shards, window: int, batch: int, epochs: int) -> list[_Numbers]:
    """Return the numbers in the order in which each of the first epochs reads them.

    What a step gets has no order: where two examples lie within a batch counts for nothing.
    """
    steps = shards.examples // batch
    with mock.patch.object(streams, "_WINDOW_BYTES", window * shards.bytes_per_example):
        batches = streams.batches_from_files(shards, Plan(0, batch, 0, 0, batch))
        read = [
            b"".join(records) for _, records in batches.take(steps * epochs).as_numpy_iterator()
        ]
    generator = np.random.default_rng(0)
    mixed = [generator.permutation(np.frombuffer(records, "<i8")) for records in read]
    return np.split(np.concatenate(mixed), epochs)


def correlation_of_neighbours(orders: list[_Numbers]) -> float:
    """Return the rank correlation of neighbours between epochs.

    It is Spearman's, of the places in an epoch of two examples that were neighbours in the one
    before: 1 if neighbours stay together, 0 if nothing is left of the old order. It is the mean
    over all pairs of epochs.
    """
    found = []
    for before, after in pairwise(orders):
        places = np.full(max(map(np.max, orders)) + 1, -1)
        places[after] = np.arange(len(after))
        ranks = places[before]
        both = (ranks[:-1] >= 0) & (ranks[1:] >= 0)
        pairs = [np.argsort(np.argsort(part[both])) for part in (ranks[:-1], ranks[1:])]
        found.append(np.corrcoef(pairs[0], pairs[1])[0, 1])
    return float(np.mean(found))
