"""The order of the training examples: exact, resumable, the same for any number of hosts."""

from __future__ import annotations

import dataclasses
import shutil
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.patience import until
from tpu_training.data.data_set import DataSet, check_readable
from tpu_training.data.pipeline import deal_out, evaluation_rows, finish, training_rows
from tpu_training.data.shards import Plan, batches_of_share
from tpu_training.errors import InputError
from tpu_training.models.params import Params

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

EXAMPLES = 103
BATCH = 12
PARAMS = Params(global_batch_size=BATCH, evaluation_batch_size=BATCH, seed=5)

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture(autouse=True)
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several windows in each lane, as large datasets have them."""
    monkeypatch.setattr("tpu_training.data.shards._FILES_PER_LANE", 1)
    monkeypatch.setattr("tpu_training.data.shards._window", lambda *_: 7)


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


def test_reading_from_a_later_step_gives_exactly_what_follows(
    numbered: DataSet, params: Params
) -> None:
    """In the first epoch, at its end and two epochs on, in the middle of windows and files."""
    whole = take(numbered, params, 0, 30)
    for first in (5, 23):
        assert take(numbered, params, first, 4) == whole[first : first + 4], first


@pytest.mark.parametrize("hosts", [2, 3])
def test_any_number_of_hosts_shares_the_same_batches(
    numbered: DataSet, params: Params, hosts: int
) -> None:
    assert take(numbered, params, 6, 5, hosts) == take(numbered, params, 6, 5)


def test_the_order_depends_on_the_seed_only(numbered: DataSet) -> None:
    other = dataclasses.replace(PARAMS, seed=6)
    assert take(numbered, PARAMS, 0, 3) == take(numbered, PARAMS, 0, 3)
    assert take(numbered, PARAMS, 0, 3) != take(numbered, other, 0, 3)


def test_a_host_reads_only_the_files_that_its_rows_come_from(
    numbered: DataSet, tmp_path: Path
) -> None:
    params = dataclasses.replace(PARAMS, cache="none")
    expected = [batch[: BATCH // 4] for batch in take(numbered, params, 0, 4)]
    # The examples were dealt to the five files in turns that begin one later each.
    needed = {(number + number // 5) % 5 for batch in expected for number in batch}
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


def test_the_first_batches_alone_come_again_and_again(numbered: DataSet, params: Params) -> None:
    again = dataclasses.replace(params, overfit_batches=3)
    every = take(numbered, params, 0, 3)
    assert take(numbered, again, 0, 7) == [*every, *every, every[0]]
    # A resumed training continues in their middle.
    assert take(numbered, again, 5, 2) == [every[2], every[0]]


@pytest.mark.parametrize("hosts", [1, 3])
def test_evaluation_has_every_example_once_with_weight_one(numbered: DataSet, hosts: int) -> None:
    seen: list[int] = []
    for host in range(hosts):
        rows = evaluation_rows(numbered, PARAMS, hosts, host).as_numpy_iterator()
        for images, _, weights in rows:
            assert images.shape == (BATCH // hosts, 2, 2, 1)
            seen += images[weights == 1, 0, 0, 0].tolist()
    assert sorted(seen) == list(range(EXAMPLES))


def test_every_host_has_as_many_batches_to_evaluate_even_if_the_last_has_no_example(
    numbered: DataSet,
) -> None:
    shards, steps, examples = numbered.shards("test"), -(-EXAMPLES // BATCH), []
    for host in range(BATCH):
        batches = batches_of_share(shards, Plan(0, BATCH, 0, host, host + 1), steps)
        weights = [float(weights[0]) for _, _, weights in batches.as_numpy_iterator()]
        assert len(weights) == steps
        examples.append(sum(weights))
    assert set(examples) == {EXAMPLES // BATCH, EXAMPLES // BATCH + 1}
    assert sum(examples) == EXAMPLES


def test_a_host_evaluates_only_the_files_of_its_share(numbered: DataSet, tmp_path: Path) -> None:
    shutil.copytree(numbered.directory, tmp_path / "data")
    for path in numbered.paths("test")[2:]:
        (tmp_path / "data" / Path(path).name).unlink()
    part = dataclasses.replace(numbered, directory=str(tmp_path / "data"))
    weights = [batch[2] for batch in evaluation_rows(part, PARAMS, 4, 0).as_numpy_iterator()]
    assert np.sum(weights) == EXAMPLES // 4


def test_a_share_shows_records_beyond_the_announced_ones(numbered: DataSet) -> None:
    shards = numbered.shards("test")
    counts = tuple(count - 1 for count in shards.counts)
    wrong = dataclasses.replace(shards, counts=counts)
    halves = [wrong.read_part(0, 50), wrong.read_part(50, sum(counts))]
    assert sum(len(list(half.as_numpy_iterator())) for half in halves) == EXAMPLES


def test_the_input_is_four_steps_ahead_for_all_cores_of_a_host(
    tpu: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def note(number: np.int64) -> np.int64:
        made.append(int(number))
        return number

    numbers_made = tf.data.Dataset.range(100).map(lambda n: tf.numpy_function(note, [n], tf.int64))
    iterator = iter(finish(numbers_made, PARAMS, replicas=8))
    next(iterator)
    until(lambda: len(made) >= 1 + 4 * 8, "four batches are made ahead")

    asked: list[int] = []

    def ask(rows: tf.data.Dataset, _: Params, replicas: int) -> tf.data.Dataset:
        asked.append(replicas)
        return rows

    monkeypatch.setattr("tpu_training.data.pipeline.finish", ask)
    deal_out(tpu, PARAMS, lambda hosts, host: tf.data.Dataset.range(64).batch(64), 8)
    assert asked == [8]


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
