"""Bytes that a bucket serves for an epoch, against those of the examples that are used."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

from bench.result import Result
from bench.trainer.counted import Counted, counted_bucket
from tpu_training.api import write_data
from tpu_training.data import shards
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import evaluation_rows, training_rows
from tpu_training.models.params import CACHE_NONE, Params

_BATCH, _HOSTS = 256, (1, 8)
_IMAGES, _SIDE = 2816, 144


def measure() -> list[Result]:
    """Images of 62 kB in 84 files, none kept in memory, as of a larger set."""
    with tempfile.TemporaryDirectory() as temporary, counted_bucket(Path(temporary, "cloud")) as at:
        images = np.random.default_rng(0).integers(0, 256, (_IMAGES, _SIDE, _SIDE, 3), np.uint8)
        labels, folder = np.arange(_IMAGES) % 10, Path(temporary, "data")
        write_data(str(folder), train=(images, labels), test=(images[:512], labels[:512]))
        data = open_data(at.upload(folder))
        params = Params(global_batch_size=_BATCH, cache=CACHE_NONE)
        return [
            Result(
                f"bytes read from a bucket / bytes used, hosts: {hosts}",
                served_by_used(at, data, params, hosts),
                "ratio",
                1.1,
            )
            for hosts in _HOSTS
        ]


def served_by_used(at: Counted, data: DataSet, params: Params, hosts: int) -> float:
    """Let each of the hosts read its rows of an epoch, after which there are no more."""
    train, before = data.manifest.split("train"), at.served

    with mock.patch.object(shards, "epochs_from", lambda first: tf.data.Dataset.range(first, 1)):
        for host in range(hosts):
            for _ in training_rows(data, params, 0, hosts, host):
                pass
    return (at.served - before) / train.bytes


def evaluated_by_used(
    at: Counted, data: DataSet, params: Params, hosts: int, split: str = "test"
) -> float:
    """Let each of the hosts evaluate its share of a split."""
    before = at.served
    for host in range(hosts):
        for _ in evaluation_rows(data, params, hosts, host, split):
            pass
    return (at.served - before) / data.manifest.split(split).bytes
