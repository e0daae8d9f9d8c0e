from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpu_training.data.arrays import read_idx
from tpu_training.data.conversion import convert
from tpu_training.data.manifest import parse_manifest
from tpu_training.errors import DataError, InputError
from tpu_training.models.spec import DataSpec

WriteImages = Callable[..., None]


@pytest.mark.usefixtures("cluster")
@pytest.mark.training
def test_idx_files_become_tfrecords_with_a_manifest_that_describes_them(
    tmp_path: Path, write_mnist: WriteImages
) -> None:
    import tensorflow as tf

    write_mnist(tmp_path / "idx", train=64, test=30)
    convert(str(tmp_path / "idx"), str(tmp_path / "out"))
    manifest = parse_manifest((tmp_path / "out" / "manifest.json").read_text(), "manifest.json")
    assert (manifest.name, manifest.encoding) == ("mnist", "raw")
    assert manifest.spec == DataSpec("image", (28, 28, 1), "uint8", 10)
    assert {name: split.examples for name, split in manifest.splits.items()} == {
        "train": 64,
        "test": 30,
    }
    file = manifest.split("train").files[0]
    content = (tmp_path / "out" / file.name).read_bytes()
    assert file.name == "mnist-train-00000-of-00001.tfrecord"
    assert (len(content), hashlib.sha256(content).hexdigest()) == (file.bytes, file.sha256)
    images = read_idx(tmp_path / "idx" / "train-images-idx3-ubyte", 3)
    records = tf.data.TFRecordDataset(str(tmp_path / "out" / file.name)).as_numpy_iterator()
    for position, record in enumerate(records):
        feature = tf.train.Example.FromString(record).features.feature
        assert feature["image"].bytes_list.value[0] == images[position].tobytes()
        assert feature["label"].int64_list.value[0] == position % 10


@pytest.mark.training
def test_large_splits_are_sharded_without_losing_an_example(
    tmp_path: Path, write_mnist: WriteImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_training.data.conversion._SMALLEST", 10 * 784)
    write_mnist(tmp_path / "idx", train=25, test=3)
    manifest = convert(str(tmp_path / "idx"), str(tmp_path / "out"))
    files = manifest.split("train").files
    assert [file.examples for file in files] == [8, 8, 9]
    assert files[1].name == "mnist-train-00001-of-00003.tfrecord"


@pytest.mark.training
def test_gzipped_files_give_the_same_data_set(tmp_path: Path, write_mnist: WriteImages) -> None:
    write_mnist(tmp_path / "plain")
    (tmp_path / "packed").mkdir()
    for path in (tmp_path / "plain").iterdir():
        (tmp_path / "packed" / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    plain = convert(str(tmp_path / "plain"), str(tmp_path / "a"))
    assert convert(str(tmp_path / "packed"), str(tmp_path / "b")) == plain


@pytest.mark.training
def test_the_digits_of_scikit_learn_get_mnists_shape(tmp_path: Path) -> None:
    manifest = convert("digits", str(tmp_path))
    assert manifest.spec.shape == (28, 28, 1)
    assert manifest.split("train").examples + manifest.split("test").examples == 1797


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def swap_magic(path: Path) -> None:
    path.write_bytes(b"\x00\x00\x0d\x03" + path.read_bytes()[4:])


def break_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress(path.read_bytes())[:-20])


def raise_label(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\x0a")


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("train-images-idx3-ubyte", Path.unlink, "contains neither train-images-idx3-ubyte nor"),
        ("train-images-idx3-ubyte", cut, "incomplete"),
        ("train-images-idx3-ubyte", swap_magic, "magic number 00000d03, expected 00000803"),
        ("train-images-idx3-ubyte", lambda path: path.write_bytes(b""), "magic number missing"),
        ("t10k-images-idx3-ubyte", break_gzip, "can't be read"),
        ("t10k-labels-idx1-ubyte", raise_label, "label 10 at position 29 of the split t10k"),
    ],
)
def test_a_damaged_file_is_named_and_nothing_is_written(
    tmp_path: Path,
    write_mnist: WriteImages,
    name: str,
    damage: Callable[[Path], None],
    words: str,
) -> None:
    write_mnist(tmp_path / "idx")
    damage(tmp_path / "idx" / name)
    with pytest.raises(DataError) as caught:
        convert(str(tmp_path / "idx"), str(tmp_path / "out"))
    assert words in str(caught.value)
    assert str(tmp_path / "idx") in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_labels_that_belong_to_other_images_are_refused(
    tmp_path: Path, write_mnist: WriteImages
) -> None:
    write_mnist(tmp_path / "idx", train=20, test=10)
    labels = tmp_path / "idx" / "t10k-labels-idx1-ubyte"
    (tmp_path / "idx" / "train-labels-idx1-ubyte").write_bytes(labels.read_bytes())
    with pytest.raises(DataError, match="10 labels for the 20 images"):
        convert(str(tmp_path / "idx"), str(tmp_path / "out"))


@pytest.mark.training
def test_an_output_that_is_a_file_is_refused(tmp_path: Path, write_mnist: WriteImages) -> None:
    write_mnist(tmp_path / "idx")
    (tmp_path / "out").write_text("")
    with pytest.raises(InputError, match=r"--output=.*can't be written"):
        convert(str(tmp_path / "idx"), str(tmp_path / "out"))


SPEC = {"kind": "image", "shape": [28, 28, 1], "dtype": "uint8", "classes": 10}
GOOD = {
    "format": 1,
    "name": "n",
    "encoding": "raw",
    "spec": SPEC,
    "splits": {
        "train": {
            "examples": 2,
            "files": [{"name": "f", "examples": 2, "bytes": 1, "sha256": "0"}],
        }
    },
}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": 3}, "its format is 3; this release reads 1"),
        ({"spec": {**SPEC, "targets": "odd"}}, "spec.targets is odd, expected one of class, la"),
        ({"spec": {**SPEC, "shape": [28, 28]}}, "shape=(28, 28), "),
        ({"spec": {**SPEC, "shape": [28, 28, "x"]}}, "spec.shape[2] is 'x', not int"),
        ({"encoding": "tokens"}, "which tokens does not store"),
        ({"vocabulary": "../model.json"}, "vocabulary is ../model.json, expected a file's name"),
        ({"encoding": "mp3"}, "encoding is mp3, expected one of raw, encoded, tokens"),
        ({"spec": {**SPEC, "classes": "many"}}, "spec.classes is 'many', not int"),
        ({"splits": {"train": {"examples": 2, "files": []}}}, "2 examples, but its files 0"),
        ({"splits": {"train": {"files": []}}}, "required positional argument: 'examples'"),
        ({"splits": []}, "not a dataset's manifest"),
    ],
)
def test_a_wrong_manifest_is_named_with_its_field(change: dict[str, object], words: str) -> None:
    assert parse_manifest(json.dumps(GOOD), "m").split("train").examples == 2
    with pytest.raises(DataError) as caught:
        parse_manifest(json.dumps({**GOOD, **change}), "gs://b/data/manifest.json")
    assert words in str(caught.value)
    assert "gs://b/data/manifest.json" in str(caught.value)


def test_a_split_that_is_not_there_is_an_error() -> None:
    with pytest.raises(DataError, match="no split test, only train"):
        parse_manifest(json.dumps(GOOD), "m").split("test")


def test_elements_are_read_in_the_order_of_the_file(tmp_path: Path) -> None:
    header = bytes((0, 0, 8, 2)) + (2).to_bytes(4, "big") + (3).to_bytes(4, "big")
    (tmp_path / "idx").write_bytes(header + bytes(range(6)))
    assert np.array_equal(read_idx(tmp_path / "idx", 2), [[0, 1, 2], [3, 4, 5]])
