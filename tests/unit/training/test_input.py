"""The order of the training examples: exact, resumable, the same for any number of hosts."""

from __future__ import annotations

import dataclasses
import shutil
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.data.convert.convert import convert
from tpu_training.data.data_set import DataSet, check_readable, open_data
from tpu_training.data.input.pipeline import evaluation_rows, training_rows
from tpu_training.errors import InputError
from tpu_training.models.params import Params

from .conftest import write_idx

EXAMPLES = 103
BATCH = 12
PARAMS = Params(global_batch_size=BATCH, evaluation_batch_size=BATCH, seed=5)

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(scope="module")
def numbered(tmp_path_factory: pytest.TempPathFactory) -> DataSet:
    """103 images in five files; the first pixel of each is its number, the label its last digit."""
    folder = tmp_path_factory.mktemp("numbered")
    images = np.zeros((EXAMPLES, 2, 2), np.uint8)
    images[:, 0, 0] = np.arange(EXAMPLES)
    labels = (np.arange(EXAMPLES) % 10).astype(np.uint8)
    for prefix in ("train", "t10k"):
        write_idx(folder / f"{prefix}-images-idx3-ubyte", images)
        write_idx(folder / f"{prefix}-labels-idx1-ubyte", labels)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpu_training.data.convert.write._SHARD_BYTES", 84)
        convert(str(folder), str(folder / "data"))
    return open_data(str(folder / "data"))


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several windows in each lane, as large data sets have them."""
    monkeypatch.setattr("tpu_training.data.input.stream._LARGEST_WINDOW", 7)


def take(data: DataSet, params: Params, first: int, steps: int, hosts: int = 1) -> list[list[int]]:
    """The numbers of the examples in the global batches from step `first` on."""
    parts = []
    for host in range(hosts):
        rows = training_rows(data, params, first, hosts, host).take(steps)
        parts.append([numbers(images, labels) for images, labels in rows.as_numpy_iterator()])
    return [list(chain(*batch)) for batch in zip(*parts, strict=True)]


def numbers(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int32]) -> list[int]:
    found: list[int] = images[:, 0, 0, 0].tolist()
    assert [number % 10 for number in found] == labels.tolist()
    return found


@pytest.fixture(params=["memory", "none"])
def params(request: pytest.FixtureRequest) -> Params:
    return dataclasses.replace(PARAMS, cache=request.param)


def test_an_epoch_has_every_example_once_and_each_epoch_another_order(
    numbered: DataSet, params: Params
) -> None:
    seen = list(chain(*take(numbered, params, 0, 20)))
    # From files, three are left over: 103 do not divide by the four lanes.
    epoch = EXAMPLES if params.cache == "memory" else 100
    if params.cache == "memory":
        first, second = seen[:epoch], seen[epoch : 2 * epoch]
    else:
        # Lanes end their epochs at the same step: 8.33 batches of 3 from each.
        lanes = np.array(seen).reshape(20, 4, 3).swapaxes(0, 1).reshape(4, 60)
        first, second = lanes[:, :25].ravel().tolist(), lanes[:, 25:50].ravel().tolist()
    for order in (first, second):
        assert len(order) == len(set(order)) == epoch
    assert first != second
    assert first != sorted(first)


def test_what_starts_at_a_step_goes_on_exactly(numbered: DataSet, params: Params) -> None:
    """In the first epoch, at its end and two epochs on, in the middle of windows and files."""
    whole = take(numbered, params, 0, 30)
    for first in (5, 23):
        assert take(numbered, params, first, 4) == whole[first : first + 4], first


@pytest.mark.parametrize("hosts", [2, 3])
def test_any_number_of_hosts_shares_the_same_batches(
    numbered: DataSet, params: Params, hosts: int
) -> None:
    assert take(numbered, params, 6, 5, hosts) == take(numbered, params, 6, 5)


def test_the_seed_alone_decides_on_the_order(numbered: DataSet) -> None:
    other = dataclasses.replace(PARAMS, seed=6)
    assert take(numbered, PARAMS, 0, 3) == take(numbered, PARAMS, 0, 3)
    assert take(numbered, PARAMS, 0, 3) != take(numbered, other, 0, 3)


def test_a_host_reads_only_the_files_that_its_rows_come_from(
    numbered: DataSet, tmp_path: Path
) -> None:
    params = dataclasses.replace(PARAMS, cache="none")
    expected = [batch[: BATCH // 4] for batch in take(numbered, params, 0, 4)]
    # The examples were dealt to the five files in turn.
    needed = {number % 5 for batch in expected for number in batch}
    assert len(needed) < 5
    shutil.copytree(numbered.directory, tmp_path / "data")
    for number, path in enumerate(numbered.paths("train")):
        if number not in needed:
            (tmp_path / "data" / Path(path).name).unlink()
    part = dataclasses.replace(numbered, directory=str(tmp_path / "data"))
    rows = training_rows(part, params, 0, 4, 0).take(4).as_numpy_iterator()
    assert [numbers(images, labels) for images, labels in rows] == expected


def test_a_batch_may_be_larger_than_an_epoch(numbered: DataSet) -> None:
    params = dataclasses.replace(PARAMS, global_batch_size=256, cache="memory")
    (batch,) = take(numbered, params, 0, 1)
    assert set(np.bincount(batch).tolist()) == {2, 3}


@pytest.mark.parametrize("hosts", [1, 3])
def test_evaluation_has_every_example_once_with_weight_one(numbered: DataSet, hosts: int) -> None:
    seen: list[int] = []
    for host in range(hosts):
        rows = evaluation_rows(numbered, PARAMS, hosts, host).as_numpy_iterator()
        for images, _, weights in rows:
            assert images.shape == (BATCH // hosts, 2, 2, 1)
            seen += images[weights == 1, 0, 0, 0].tolist()
    assert sorted(seen) == list(range(EXAMPLES))


def test_data_that_only_this_machine_has_is_refused_before_the_training(
    numbered: DataSet, tmp_path: Path
) -> None:
    """The worker's own files are others; here its folder is an empty one."""
    remote = SimpleNamespace(endpoint="grpc://10.0.0.2:8470", worker_hosts=lambda: ["/CPU:0"])
    check_readable(numbered, remote)  # type: ignore[arg-type]
    elsewhere = dataclasses.replace(numbered, directory=str(tmp_path))
    with pytest.raises(InputError, match=r"--data=.*10\.0\.0\.2:8470.*bucket"):
        check_readable(elsewhere, remote)  # type: ignore[arg-type]


def test_a_label_that_the_manifest_does_not_announce_is_an_error(numbered: DataSet) -> None:
    spec = dataclasses.replace(numbered.manifest.spec, classes=9)
    wrong = dataclasses.replace(
        numbered, manifest=dataclasses.replace(numbered.manifest, spec=spec)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="label is out of range"):
        take(wrong, PARAMS, 0, 20)
