"""Data in buckets: read no more than is used, written with few files on the disk.

One module, because TensorFlow keeps the token of the first bucket's cloud in a process.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpu_training
from tests.counted import Counted, counted_bucket, served_by_used
from tpu_core.bucket import Bucket, Item
from tpu_core.google import GoogleError
from tpu_training.api import write_data
from tpu_training.cluster import google
from tpu_training.cluster.cluster import Cluster
from tpu_training.data import conversion, files, output
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.inspection import inspect
from tpu_training.data.manifest import PROGRESS
from tpu_training.data.pipeline import evaluation_rows, training_rows
from tpu_training.data.preprocessing import parse_examples
from tpu_training.data.validation import hold_out
from tpu_training.errors import DataError, InputError
from tpu_training.job import start
from tpu_training.job.job import Job
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model

pytestmark = [pytest.mark.training, pytest.mark.usefixtures("cluster")]

EXAMPLES, TESTED = 2048, 512
PARAMS = Params(global_batch_size=64, evaluation_batch_size=64, seed=5, cache="none")
MOST = 1.1


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Counted]:
    with pytest.MonkeyPatch.context() as patch:
        # More than any file here, as 64 MiB are more than any of a larger set; each takes memory.
        patch.setenv("GCS_READ_CACHE_BLOCK_SIZE_MB", "1")
        with counted_bucket(tmp_path_factory.mktemp("cloud")) as counted:
            yield counted


def evaluated_by_used(
    at: Counted, data: DataSet, params: Params, hosts: int, split: str = "test"
) -> float:
    """Let each of the hosts evaluate its share of a split."""
    before = at.served
    for host in range(hosts):
        for _ in evaluation_rows(data, params, hosts, host, split):
            pass
    return (at.served - before) / data.manifest.split(split).bytes


def images() -> tuple[Any, Any]:
    drawn = np.random.default_rng(0).integers(0, 256, (EXAMPLES, 16, 16, 1), np.uint8)
    return drawn, np.arange(EXAMPLES) % 10


def tokens() -> tuple[Any, Any]:
    return np.random.default_rng(0).integers(1, 500, (EXAMPLES, 64)), None


def texts() -> tuple[Any, Any]:
    return [f"text {n} of {EXAMPLES}, and some more words" for n in range(EXAMPLES)], (
        np.arange(EXAMPLES) % 2
    )


def masks() -> tuple[Any, Any]:
    pictures, _ = images()
    return pictures, np.random.default_rng(1).integers(0, 3, (EXAMPLES, 16, 16), np.uint8)


def in_bucket(
    bucket: Counted, folder: Path, make: Callable[[], tuple[Any, Any]], files: int
) -> DataSet:
    """Many small files, as a larger set has of larger ones."""
    features, targets = make()
    few = features[:TESTED], targets if targets is None else targets[:TESTED]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "tpu_training.data.conversion._count_shards",
            lambda _, count, __: files if count == EXAMPLES else files // 5,
        )
        write_data(str(folder), train=(features, targets), test=few)
    return open_data(bucket.upload(folder))


@pytest.fixture(scope="module")
def data(bucket: Counted, tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    return in_bucket(bucket, tmp_path_factory.mktemp("written") / "numbers", images, 40)


@pytest.mark.parametrize("make", [tokens, texts, masks])
def test_all_hosts_together_read_each_file_of_an_epoch_once(
    bucket: Counted, tmp_path: Path, make: Callable[[], tuple[Any, Any]]
) -> None:
    data = in_bucket(bucket, tmp_path / make.__name__, make, 20)
    assert served_by_used(bucket, data, PARAMS, 2) <= MOST


def test_four_hosts_and_a_host_with_a_memory_cache_read_each_file_once(
    bucket: Counted, data: DataSet
) -> None:
    assert served_by_used(bucket, data, PARAMS, 4) <= MOST
    assert served_by_used(bucket, data, dataclasses.replace(PARAMS, cache="memory"), 1) <= MOST


def test_hosts_read_their_shares_of_the_test_set(bucket: Counted, data: DataSet) -> None:
    assert evaluated_by_used(bucket, data, PARAMS, 4) <= MOST


def test_what_is_held_out_is_in_files_that_the_training_leaves_alone(
    bucket: Counted, data: DataSet
) -> None:
    part = hold_out(data, dataclasses.replace(PARAMS, validation_fraction=0.1))
    assert served_by_used(bucket, part, PARAMS, 1) <= MOST
    assert evaluated_by_used(bucket, part, PARAMS, 1, "validation") <= MOST


def test_a_data_set_is_opened_by_one_call_for_all_its_files(
    bucket: Counted, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(data.paths("train")) > 30
    before = bucket.calls
    assert open_data(data.directory) == data
    # Two for the manifest, one for the list.
    assert bucket.calls - before <= 4

    def fail(self: Bucket, prefix: str, *, deep: bool) -> Iterator[Item]:
        raise GoogleError(503, "Cloud Storage answers 503")

    monkeypatch.setattr(Bucket, "items", fail)
    assert open_data(data.directory) == data


def test_a_list_of_a_folder_leaves_its_folders_to_the_bucket(
    bucket: Counted, data: DataSet
) -> None:
    """Below its data a job may keep thousands of files."""
    name, _, folder = data.directory.removeprefix("gs://").partition("/")
    sizes = files.sizes(data.directory)
    google.bucket(name).write(f"{folder}/job/checkpoint", b"content")
    shallow = [item.path for item in google.bucket(name).items(f"{folder}/", deep=False)]
    assert [path.rpartition("/")[2] for path in shallow] == sorted(sizes)
    assert files.sizes(data.directory) == sizes


def test_a_file_that_a_bucket_lacks_is_named(
    bucket: Counted, data: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = Path(data.paths("train")[3]).name
    items = Bucket.items

    def lacking(self: Bucket, prefix: str, *, deep: bool) -> Iterator[Item]:
        return (item for item in items(self, prefix, deep=deep) if not item.path.endswith(missing))

    monkeypatch.setattr(Bucket, "items", lacking)
    with pytest.raises(DataError, match=f"{missing} is missing"):
        open_data(data.directory)


# Written straight into the bucket.

ROWS = np.random.default_rng(3).normal(size=(40, 3)).astype(np.float32)
WRITTEN = ROWS, np.arange(40) % 4
NUMBERS = itertools.count()


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Files of two at a time, seven in all; how many are on the disk when one is finished."""
    seen: list[int] = []
    finish = output.NewFolder.finish

    def counted(self: output.NewFolder, path: Path) -> None:
        seen.append(len(list(self.path.iterdir())))
        finish(self, path)

    monkeypatch.setattr(output.NewFolder, "finish", counted)
    monkeypatch.setattr(output, "_AT_ONCE", 2)
    monkeypatch.setattr(conversion, "_count_shards", lambda *_: 7)
    return seen


def rows(folder: str, split: str = "train") -> Any:
    data = open_data(folder)
    serialised = next(iter(data.shards(split).read_all().batch(100)))
    features, classes = parse_examples(serialised, data.manifest)
    return sorted(zip(features.numpy().tolist(), classes.numpy().tolist(), strict=True))


def test_a_bucket_gets_what_a_local_folder_gets(
    bucket: Counted, tmp_path: Path, on_disk: list[int]
) -> None:
    write_data("gs://counted/rows/", train=WRITTEN, test=WRITTEN)
    assert max(on_disk) <= 2
    write_data(str(tmp_path / "rows"), train=WRITTEN, test=WRITTEN)
    assert rows("gs://counted/rows") == rows(str(tmp_path / "rows"))
    assert inspect("gs://counted/rows").splits["train"].classes == (10, 10, 10, 10)
    split = open_data("gs://counted/rows").manifest.split("train")
    counts = [file.examples for file in split.files]
    assert (sum(counts), sorted(set(counts))) == (40, [5, 6])


def test_a_folder_of_a_bucket_that_is_used_or_missing_is_refused(bucket: Counted) -> None:
    write_data("gs://counted/used", train=WRITTEN, test=WRITTEN)
    with pytest.raises(InputError, match=r"--output=gs://counted/used: is not empty \(.*data-"):
        write_data("gs://counted/used", train=WRITTEN, test=WRITTEN)
    with pytest.raises(InputError, match=r"--output=gs://none/a: there is no bucket none"):
        write_data("gs://none/a", train=WRITTEN, test=WRITTEN)


def test_a_training_converts_into_its_bucket_also_after_it_was_killed_meanwhile(
    bucket: Counted, tmp_path: Path, on_disk: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rows.parquet").touch()
    monkeypatch.setattr(start, "_files", lambda data: [Path(data)])

    def convert(data: str, output: str, directory: str) -> None:
        write_data(output, train=WRITTEN, test=WRITTEN)

    monkeypatch.setattr(start, "_convert", convert)
    model, place = load_model("mnist_cnn"), (f"{tmp_path}/rows.parquet", "gs://counted/model")
    given = Job("train", None, None, None, *place, model, Params())
    finish = output.NewFolder.finish

    def die(self: output.NewFolder, path: Path) -> None:
        finish(self, path)
        if len(on_disk) == 3:
            raise SystemExit("killed")

    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(output.NewFolder, "finish", die)
        killed.setattr(output.NewFolder, "remove", lambda _: None)
        with pytest.raises(SystemExit, match="killed"):
            start.with_converted_data(given)
    made = start.with_converted_data(given).data
    assert len(tf.io.gfile.glob(f"{made}/*-of-*")) == 14
    assert rows(made) == sorted(zip(ROWS.tolist(), WRITTEN[1].tolist(), strict=True))
    monkeypatch.setattr(start, "_convert", None)
    assert start.with_converted_data(given).data == made


def test_a_conversion_that_fails_leaves_nothing_in_the_bucket(
    bucket: Counted, on_disk: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    finish = output.NewFolder.finish

    def fail(self: output.NewFolder, path: Path) -> None:
        finish(self, path)
        if len(on_disk) == 5:
            raise DataError("the source ends early")

    monkeypatch.setattr(output.NewFolder, "finish", fail)
    with pytest.raises(DataError, match="the source ends early"):
        write_data("gs://counted/failed", train=WRITTEN, test=WRITTEN)
    assert tf.io.gfile.glob("gs://counted/failed/*") == []


def test_a_conversion_that_was_killed_before_its_plan_begins_again(
    bucket: Counted, on_disk: list[int]
) -> None:
    with tf.io.gfile.GFile(f"gs://counted/early/{PROGRESS}", "w") as file:
        file.write("00000000 00000001")
    write_data("gs://counted/early", train=WRITTEN, test=WRITTEN)
    assert rows("gs://counted/early")


def test_a_bucket_that_refuses_a_file_is_named(
    bucket: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise tf.errors.PermissionDeniedError(None, None, "403: storage.objects.create")

    monkeypatch.setattr(tf.io.gfile, "copy", refuse)
    message = r"--output=gs://counted/denied: can't be written \(403: storage\.objects\.create\)"
    with pytest.raises(InputError, match=message):
        write_data("gs://counted/denied", train=WRITTEN, test=WRITTEN)


@pytest.fixture
def half_there(on_disk: list[int], monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a conversion that was killed after two of its seven files."""
    monkeypatch.setattr("tpu_training.data.shards._FILES_PER_WINDOW", 2)
    monkeypatch.setattr("tpu_training.data.shards.LOOK_SECONDS", 0.1)
    finish, folder = output.NewFolder.finish, f"gs://counted/streamed-{next(NUMBERS)}"

    def die(self: output.NewFolder, path: Path) -> None:
        finish(self, path)
        if "train-00003" in path.name:
            raise SystemExit("killed")

    with pytest.MonkeyPatch.context() as killed:
        killed.setattr(output.NewFolder, "finish", die)
        with pytest.raises(SystemExit, match="killed"):
            write_data(folder, train=WRITTEN, test=WRITTEN)
    data = open_data(folder, streams=True)
    assert data.growth
    assert data.growth.finished == 2
    return folder


def converting(folder: str) -> threading.Timer:
    """The conversion, which begins again in a second."""
    again = threading.Timer(1, write_data, (folder,), {"train": WRITTEN, "test": WRITTEN})
    again.start()
    return again


def test_what_is_read_while_it_is_converted_is_what_is_read_afterwards(
    bucket: Counted, half_there: str
) -> None:
    params = dataclasses.replace(PARAMS, global_batch_size=4, order="stream")

    def read(first: int, count: int) -> list[Any]:
        data = open_data(half_there, streams=True)
        found = training_rows(data, params, first, 1, 0).take(count).as_numpy_iterator()
        return [features.tolist() for features, _ in found]

    seen = read(0, 2)
    again = converting(half_there)
    seen += read(2, 12)
    again.join()
    assert rows(half_there) == sorted(zip(ROWS.tolist(), WRITTEN[1].tolist(), strict=True))
    assert seen == read(0, 14)


def linear(params: Any, spec: Any, seed: int) -> Any:
    class Linear(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.zeros((spec.shape[0], spec.classes)))

        def __call__(self, features: Any, training: bool) -> tf.Tensor:
            return features @ self.kernel

    return Linear()


def test_a_training_waits_for_its_data_ends_if_none_comes_and_resumes(
    bucket: Counted,
    half_there: str,
    tmp_path: Path,
    one_device: Cluster,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: one_device)
    sizes: Any = {
        "global_batch_size": 4,
        "evaluation_batch_size": 4,
        "steps_per_loop": 1,
        "epochs": 2,
    }
    sizes |= {"order": "stream", "learning_rate": 0.1}

    def fit(model_dir: str) -> Any:
        folder = str(tmp_path / model_dir)
        result = tpu_training.fit(linear, data=half_there, model_dir=folder, **sizes)
        return result.metrics["steps"], result.model.kernel.numpy().tolist()

    with pytest.MonkeyPatch.context() as impatient:
        impatient.setattr("tpu_training.data.data_set._PATIENCE_SECONDS", 0.3)
        with pytest.raises(DataError, match="2 of 7 training files are there, and the conversion"):
            fit("early")
    assert list((tmp_path / "early" / "checkpoints").glob("*-2.index"))
    again = converting(half_there)
    early = fit("early")
    again.join()
    assert early == fit("late")
    assert early[0] == 20
