"""How examples of large data sets are mixed, and where their records are found."""

from __future__ import annotations

import dataclasses
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from bench.rows.shuffle import correlation_of_neighbours, read_epochs, write_numbers
from tpu_training.data.data_set import DataSet
from tpu_training.data.index import read_offsets
from tpu_training.data.input.pipeline import training_rows
from tpu_training.data.input.shards import CAN_BEGIN_WITHIN
from tpu_training.data.manifest import parse_manifest
from tpu_training.errors import DataError
from tpu_training.models.params import Params

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.mark.skipif(not CAN_BEGIN_WITHIN, reason="this TensorFlow reads files from their start")
def test_neighbours_of_an_epoch_are_far_apart_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a set ten times the window; without an index, files and so neighbours stay together."""
    monkeypatch.setattr("tpu_training.data.input.stream._WINDOW_BYTES", 0)
    monkeypatch.setattr("tpu_training.data.input.stream._WINDOW_EXAMPLES", 2000)
    shards, offsets = write_numbers(tmp_path, 20_000, files=4)
    orders = read_epochs(shards, offsets, batch=250, epochs=3)
    for order in orders:
        assert sorted(order) == list(range(20_000))
    assert abs(correlation_of_neighbours(orders)) < 0.03
    monkeypatch.setattr("tpu_training.data.input.stream._WINDOW_BYTES", 2000 * 24)
    assert correlation_of_neighbours(read_epochs(shards, None, batch=250, epochs=2)) > 0.3


def test_the_measure_tells_a_shuffle_from_a_fixed_order() -> None:
    generator = np.random.default_rng(0)
    shuffled = [generator.permutation(20_000) for _ in range(2)]
    assert abs(correlation_of_neighbours(shuffled)) < 0.03
    assert correlation_of_neighbours([np.arange(1000)] * 2) == pytest.approx(1.0)


def test_an_index_says_where_each_record_begins(numbered: DataSet) -> None:
    offsets = read_offsets(numbered, "train")
    assert offsets
    for path, file, found in zip(
        numbered.paths("train"), numbered.manifest.split("train").files, offsets, strict=True
    ):
        content = Path(path).read_bytes()
        assert len(found) == file.examples + 1
        assert found[-1] == len(content)
        for begin, end in pairwise(found):
            assert int.from_bytes(content[begin : begin + 8], "little") == end - begin - 16


def test_a_data_set_without_an_index_is_read_as_before(numbered: DataSet) -> None:
    text = numbered.manifest.to_json()
    whole = parse_manifest(text, "manifest.json")
    assert whole.split("train").index == numbered.manifest.split("train").index
    splits = {name: dataclasses.replace(split, index=None) for name, split in whole.splits.items()}
    old = dataclasses.replace(numbered, manifest=dataclasses.replace(whole, splits=splits))
    assert read_offsets(old, "train") is None
    rows = training_rows(old, Params(global_batch_size=4, cache="none"), 0, 1, 0).take(25)
    assert sum(len(labels) for _, labels in rows) == 100


def test_an_index_of_other_files_is_named(numbered: DataSet, tmp_path: Path) -> None:
    index = numbered.manifest.split("train").index
    assert index
    (tmp_path / index.name).write_bytes(b"\0" * index.bytes)
    wrong = dataclasses.replace(numbered, directory=str(tmp_path))
    with pytest.raises(DataError, match=rf"{index.name}: is not the manifest's; copy"):
        read_offsets(wrong, "train")
