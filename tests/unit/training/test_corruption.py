"""Corrupt records: named, or left out up to a limit; and everything else is read."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import tensorflow as tf

from training.corruption import without_corrupt_records
from training.data.inspect import inspect
from training.data.records import scan
from training.data_set import DataSet, open_data
from training.errors import DataError
from training.input_pipeline import training_rows
from training.params import Params

pytestmark = pytest.mark.usefixtures("cluster")

FILE = "bars-train-00000-of-00001.tfrecord"
EXAMPLES = 640


@pytest.fixture
def folder(bars: Path, tmp_path: Path) -> Path:
    shutil.copytree(bars, tmp_path / "data")
    return tmp_path / "data"


def damage(folder: Path, *offsets: int) -> DataSet:
    content = bytearray((folder / FILE).read_bytes())
    for offset in offsets:
        content[offset] ^= 255
    (folder / FILE).write_bytes(content)
    return open_data(str(folder))


def starts(folder: Path) -> list[int]:
    """Where each record begins."""
    content = (folder / FILE).read_bytes()
    found = scan(content, EXAMPLES)
    assert not found.corrupt
    assert all(a + n + 16 == b for (a, n), (b, _) in pairwise(found.whole))
    return [start - 12 for start, _ in found.whole]


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_all_but_the_corrupt_records_are_read(folder: Path, cache: str) -> None:
    offsets = starts(folder)
    records = list(open_data(str(folder)).shards("train").read_all().as_numpy_iterator())
    damaged = damage(folder, offsets[17] + 200, offsets[18] + 300, offsets[639] + 100)
    params = Params(global_batch_size=7, cache=cache)
    with pytest.raises(tf.errors.DataLossError):
        list(training_rows(damaged, params, 0, 1, 0).take(91))
    data = without_corrupt_records(damaged, limit=3)
    assert data
    assert data.manifest.split("train").examples == 637
    left = list(data.shards("train").read_all().as_numpy_iterator())
    assert left == [record for n, record in enumerate(records) if n not in (17, 18, 639)]
    rows = training_rows(data, params, 0, 1, 0).take(91)
    assert sum(len(labels) for _, labels in rows) == 637


def test_one_more_than_the_limit_is_an_error_that_names_file_and_offset(folder: Path) -> None:
    offsets = starts(folder)
    data = damage(folder, offsets[17] + 200, offsets[18] + 300)
    with pytest.raises(DataError) as caught:
        without_corrupt_records(data, limit=1)
    message = str(caught.value)
    assert f"{FILE}: corrupt record at offset {offsets[18]} (2 in this file)" in message
    assert "--skip_corrupt_records=1" in message
    with pytest.raises(DataError, match=f"corrupt record at offset {offsets[17]} "):
        inspect(str(folder), grid=None)


def test_behind_a_corrupt_length_everything_counts_as_lost(folder: Path) -> None:
    offsets = starts(folder)
    data = damage(folder, offsets[630] + 1)
    with pytest.raises(DataError, match=rf"offset {offsets[630]} \(10 in this file\)"):
        without_corrupt_records(data, limit=9)
    part = without_corrupt_records(data, limit=10)
    assert part
    assert part.manifest.split("train").examples == 630


def test_another_file_with_whole_records_is_not_taken_for_a_damaged_one(folder: Path) -> None:
    files = open_data(str(folder)).manifest.split("train").files
    (folder / FILE).write_bytes(b"")
    with tf.io.TFRecordWriter(str(folder / FILE)) as writer:
        for _ in range(EXAMPLES):
            writer.write(b"x")
    size = (folder / FILE).stat().st_size
    text = (folder / "manifest.json").read_text().replace(str(files[0].bytes), str(size))
    (folder / "manifest.json").write_text(text)
    with pytest.raises(DataError, match="though each of its records is whole"):
        without_corrupt_records(open_data(str(folder)), limit=1000)


def test_whole_data_is_left_as_it_is(folder: Path) -> None:
    data = open_data(str(folder))
    assert without_corrupt_records(data, limit=0) is None
