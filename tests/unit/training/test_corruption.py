"""Corrupt records: named, or left out up to a limit; and everything else is read."""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tpu_training.data import inspection
from tpu_training.data.conversion import convert
from tpu_training.data.data_set import DataSet, open_data, stored_files
from tpu_training.data.inspection import (
    inspect,
    readable_part,
    scan,
    without_corrupt_records,
    without_unreadable_records,
)
from tpu_training.data.pipeline import training_rows
from tpu_training.errors import DataError
from tpu_training.models.params import Params

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
    assert all(a + n + 16 == b for (a, n, _), (b, *_) in pairwise(found.whole))
    return [start - 12 for start, *_ in found.whole]


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
        inspect(str(folder))


def test_all_records_after_a_corrupt_length_count_as_lost(folder: Path) -> None:
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


Example: Any = tf.train.Example


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A data set of 18 training and 2 test images of 6 x 6 pixels, kept as PNG files."""
    for name in ("a", "b"):
        (tmp_path / "source" / name).mkdir(parents=True)
        for number in range(10):
            image = tf.fill((6, 6, 3), tf.constant(number, tf.uint8))
            png = tf.io.encode_png(image).numpy()
            (tmp_path / "source" / name / f"{number}.png").write_bytes(png)
    convert(str(tmp_path / "source"), str(tmp_path / "data"))
    return tmp_path / "data"


def rewrite(folder: Path, changes: dict[int, Any]) -> list[int]:
    """Merge `changes` into training examples; all checksums are right. Where each record begins."""
    manifest = json.loads((folder / "manifest.json").read_text())
    entry = manifest["splits"]["train"]["files"][0]
    path = folder / entry["name"]
    records = [bytes(r) for r in tf.data.TFRecordDataset(str(path)).as_numpy_iterator()]
    with tf.io.TFRecordWriter(str(path)) as writer:
        for number, record in enumerate(records):
            example = Example.FromString(record)
            for name, feature in changes.get(number, Example()).features.feature.items():
                example.features.feature[name].CopyFrom(feature)
            writer.write(example.SerializeToString())
    content = path.read_bytes()
    entry |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return [start - 12 for start, *_ in scan(content, len(records)).whole]


def image_of(content: bytes) -> Any:
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
    return Example(features=tf.train.Features(feature={"image": feature}))


def label_of(number: int) -> Any:
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
    return Example(features=tf.train.Features(feature={"label": feature}))


def test_unusable_images_and_labels_count_as_corrupt_records(
    pictures: Path,
) -> None:
    larger = tf.io.encode_png(tf.zeros((7, 6, 3), tf.uint8)).numpy()
    changes = {3: image_of(b"\xff\xd8\xff no JPEG"), 8: image_of(larger), 11: label_of(2)}
    offsets = rewrite(pictures, changes)
    broken = open_data(str(pictures))
    params = Params(global_batch_size=5)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(training_rows(broken, params, 0, 1, 0).take(4))
    with pytest.raises(DataError, match=rf"offset {offsets[3]} \(3 in this file; .*Invalid JPEG"):
        readable_part(broken, 0, caught.value)
    with pytest.raises(DataError, match=f"at offset {offsets[11]} .*skip_corrupt_records=2"):
        readable_part(broken, 2, caught.value)
    data = readable_part(broken, 3, caught.value)
    assert data.manifest.split("train").examples == 15
    seen = [labels for _, labels in training_rows(data, params, 0, 1, 0).take(3)]
    assert sum(len(labels) for labels in seen) == 15
    with pytest.raises(tf.errors.InvalidArgumentError):
        readable_part(data, 3, caught.value)
    with pytest.raises(DataError, match=f"at offset {offsets[3]} "):
        inspect(str(pictures))


def test_inspect_names_a_label_that_is_out_of_range_in_raw_images_too(
    folder: Path,
) -> None:
    offsets = rewrite(folder, {5: label_of(10)})
    with pytest.raises(DataError, match=f"at offset {offsets[5]} .*a label is out of range"):
        inspect(str(folder))


def test_the_limit_is_for_both_kinds_together(pictures: Path) -> None:
    offsets = rewrite(pictures, {3: image_of(b"no image")})
    (path,) = pictures.glob("*-train-*")
    content = bytearray(path.read_bytes())
    content[offsets[9] + 20] ^= 255
    path.write_bytes(content)
    data = without_corrupt_records(open_data(str(pictures)), limit=1)
    assert data
    with pytest.raises(DataError, match=f"at offset {offsets[3]} .*Unknown image file format"):
        without_unreadable_records(data, limit=1)
    rest = without_unreadable_records(data, limit=2)
    assert rest
    assert rest.manifest.split("train").examples == 16
    assert without_unreadable_records(rest, limit=2) is None


@pytest.mark.parametrize(
    "message",
    [
        "Compilation failure: Detected unsupported operations: Input to reshape is a tensor with 4",
        "{{node TPUReplicate/_compile/_1}} Input to reshape is a tensor with 4 values",
        "indices[3] = 99 is not in [0, 10) [[{{node gather}}]]",
    ],
)
def test_an_error_without_a_bad_record_is_raised_without_reading_any(
    folder: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    data = open_data(str(folder))
    monkeypatch.setattr(inspection, "without_corrupt_records", lambda *_: pytest.fail("it reads"))
    error = tf.errors.InvalidArgumentError(None, None, message)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        readable_part(data, 5, error)
    assert caught.value is error


def test_the_error_is_logged_before_the_search_which_reports_each_file(
    numbered: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(numbered.directory, tmp_path / "data")
    data = open_data(str(tmp_path / "data"))
    path = Path(data.paths("train")[2])
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    seen: list[str] = []

    def alive() -> None:
        seen.append(caplog.text)

    def search(message: str) -> int:
        seen.clear()
        readable_part(data, 5, tf.errors.DataLossError(None, None, message), alive)
        assert f"data: {message}" in seen[0]
        return len(seen)

    # Files of both splits; the one that the message names is enough.
    assert search("corrupted record at 12") == len([*stored_files(data)])
    assert search(f"corrupted record at 12 of {path}") == 1
