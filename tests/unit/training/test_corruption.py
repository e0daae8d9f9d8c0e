"""Files and records that are not what the manifest says are named."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

from tpu_training.data import inspection
from tpu_training.data.conversion import convert
from tpu_training.data.data_set import DataSet, open_data, stored_files
from tpu_training.data.inspection import blame_data, inspect
from tpu_training.data.pipeline import training_rows
from tpu_training.errors import DataError
from tpu_training.models.params import Params

pytestmark = pytest.mark.usefixtures("cluster")

FILE = "bars-train-00000-of-00001.tfrecord"


@pytest.fixture
def folder(bars: Path, tmp_path: Path) -> Path:
    shutil.copytree(bars, tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_a_changed_file_is_named_by_a_training_and_by_inspect(folder: Path, cache: str) -> None:
    content = bytearray((folder / FILE).read_bytes())
    content[len(content) // 2] ^= 255
    (folder / FILE).write_bytes(content)
    data, params = open_data(str(folder)), Params(global_batch_size=7, cache=cache)
    with pytest.raises(tf.errors.DataLossError) as caught:
        list(training_rows(data, params, 0, 1, 0).take(91))
    words = f"{FILE}: its SHA-256 differs from the manifest's; copy the dataset there again"
    with pytest.raises(DataError, match=words):
        blame_data(data, caught.value)
    with pytest.raises(DataError, match=words):
        inspect(str(folder))


Example: Any = tf.train.Example


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A dataset of 18 training and 2 test images of 6 x 6 pixels, kept as PNG files."""
    for name in ("a", "b"):
        (tmp_path / "source" / name).mkdir(parents=True)
        for number in range(10):
            image = tf.fill((6, 6, 3), tf.constant(number, tf.uint8))
            png = tf.io.encode_png(image).numpy()
            (tmp_path / "source" / name / f"{number}.png").write_bytes(png)
    convert(str(tmp_path / "source"), str(tmp_path / "data"))
    return tmp_path / "data"


def rewrite(folder: Path, changes: dict[int, Any]) -> None:
    """Merge `changes` into training examples, whose checksums are right."""
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


def image_of(content: bytes) -> Any:
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=[content]))
    return Example(features=tf.train.Features(feature={"image": feature}))


def label_of(number: int) -> Any:
    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
    return Example(features=tf.train.Features(feature={"label": feature}))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: image_of(b"\xff\xd8\xff no JPEG"), "Invalid JPEG"),
        (
            lambda: image_of(tf.io.encode_png(tf.zeros((7, 6, 3), tf.uint8)).numpy()),
            "not all images have the size (6, 6)",
        ),
        (lambda: label_of(2), "a label is out of range"),
    ],
)
def test_inspect_refuses_an_example_that_cannot_be_used(
    pictures: Path, change: Any, words: str
) -> None:
    rewrite(pictures, {3: change()})
    data = open_data(str(pictures))
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        list(training_rows(data, Params(global_batch_size=5), 0, 1, 0).take(4))
    blame_data(data, caught.value)
    with pytest.raises(DataError, match="split train: ") as told:
        inspect(str(pictures))
    assert words in str(told.value)


@pytest.mark.parametrize(
    "message",
    [
        "Compilation failure: Detected unsupported operations: Input to reshape is a tensor with 4",
        "{{node TPUReplicate/_compile/_1}} Input to reshape is a tensor with 4 values",
        "indices[3] = 99 is not in [0, 10) [[{{node gather}}]]",
    ],
)
def test_an_error_that_no_file_can_cause_reads_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, message: str
) -> None:
    data = open_data(str(folder))
    monkeypatch.setattr(inspection, "_check", lambda *_: pytest.fail("it reads"))
    blame_data(data, tf.errors.InvalidArgumentError(None, None, message))


def test_the_error_is_logged_before_the_search_which_reports_each_file(
    numbered: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(numbered.directory, tmp_path / "data")
    data = open_data(str(tmp_path / "data"))
    path = data.paths("train")[2]
    seen: list[str] = []

    def alive() -> None:
        seen.append(caplog.text)

    def search(message: str) -> int:
        seen.clear()
        blame_data(data, tf.errors.DataLossError(None, None, message), alive)
        assert f"data: {message}" in seen[0]
        return len(seen)

    # Files of both splits; the one that the message names is enough.
    assert search("corrupted record at 12") == len([*stored_files(data)])
    assert search(f"corrupted record at 12 of {path}") == 1
