"""What TensorFlow reads of a bucket is what is used, though it asks for 64 MiB at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.counted import Counted, counted_bucket, served_by_used
from tpu_core.bucket import Bucket, Item
from tpu_core.google import GoogleError
from tpu_training.api import write_data
from tpu_training.cluster import google
from tpu_training.data import files
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import evaluation_rows
from tpu_training.data.validation import hold_out
from tpu_training.errors import DataError
from tpu_training.models.params import Params

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
            lambda _, count: files if count == EXAMPLES else files // 5,
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
