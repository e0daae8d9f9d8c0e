"""A tf.data function that a training reads itself: exact, resumable, shared by hosts, checked."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.cluster.endpoint import NoTpu, Wait
from tpu_training.data.data_set import open_function
from tpu_training.data.function import load_function, seed_of
from tpu_training.data.inspection import blame_data
from tpu_training.data.pipeline import evaluation_rows, training_rows
from tpu_training.errors import DataError, InputError
from tpu_training.job.job import Job
from tpu_training.job.run import connect_and_open, python_in, refuse_unrepeatable, trace
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster
    from tpu_training.data.data_set import DataSet

EXAMPLES, BATCH = 23, 6
PARAMS = Params(global_batch_size=BATCH, evaluation_batch_size=BATCH, seed=5)

pytestmark = pytest.mark.usefixtures("cluster")

FUNCTION = """
import tensorflow as tf


def dataset(split, context):
    if split == "validation":
        return None
    count = 23 if split == "train" else 7
    numbers = tf.data.Dataset.range(count)
    if split == "train":
        numbers = numbers.shuffle(count, seed=context.seed)

    def draw(number):
        noise = tf.random.stateless_uniform((), (context.seed, number), 0, 200, tf.int32)
        if number % 2 == 0:
            noise = 0
        image = tf.cast(tf.stack([number, tf.cast(noise, tf.int64)]), tf.uint8)
        return tf.reshape(image, (2, 1, 1)), number % 3

    return numbers.map(draw, num_parallel_calls=tf.data.AUTOTUNE)
"""


def write(folder: Path, *changes: tuple[str, str]) -> str:
    text = FUNCTION
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    # 0 in the first epoch, which the look sees, and 1 in later ones.
    later = f"tf.cast(context.seed != {int(seed_of(5, 0))}, tf.int64)"
    (folder / "mine.py").write_text(text.replace("LATER", later))
    return str(folder / "mine.py")


@pytest.fixture
def data(tmp_path: Path) -> DataSet:
    return open_function(write(tmp_path), 5)


def take(data: DataSet, first: int, steps: int, hosts: int = 1) -> list[list[tuple[int, int]]]:
    """The numbers of the examples, and what was drawn for each, from step `first` on."""
    parts = []
    for host in range(hosts):
        rows = training_rows(data, PARAMS, first, hosts, host).take(steps)
        parts.append([pairs(images, labels) for images, labels in rows.as_numpy_iterator()])
    return [list(chain(*batch)) for batch in zip(*parts, strict=True)]


def pairs(images: npt.NDArray[np.uint8], labels: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
    assert (images[:, 0, 0, 0] % 3 == labels).all()
    return [(int(number), int(noise)) for number, noise in images[:, :, 0, 0]]


def test_an_epoch_has_every_example_once_and_each_epoch_other_draws(data: DataSet) -> None:
    seen = list(chain(*take(data, 0, 8)))
    first, second = seen[:EXAMPLES], seen[EXAMPLES : 2 * EXAMPLES]
    assert {number for number, _ in first} == {number for number, _ in second} == set(range(23))
    assert [number for number, _ in first] != [number for number, _ in second]
    assert dict(first) != dict(second)


@pytest.mark.parametrize("first", [2, 4, 9])
def test_reading_from_a_later_step_gives_exactly_what_follows(data: DataSet, first: int) -> None:
    """In the first epoch, across the border of two, and two epochs on."""
    assert take(data, first, 3) == take(data, 0, 12)[first : first + 3]


@pytest.mark.parametrize("hosts", [2, 3])
def test_any_number_of_hosts_shares_the_same_batches(data: DataSet, hosts: int) -> None:
    assert take(data, 3, 4, hosts) == take(data, 3, 4)


@pytest.mark.parametrize("hosts", [1, 3])
def test_evaluation_has_every_example_once_with_weight_one(data: DataSet, hosts: int) -> None:
    seen: list[int] = []
    for host in range(hosts):
        for images, _, weights in evaluation_rows(data, PARAMS, hosts, host).as_numpy_iterator():
            assert images.shape == (BATCH // hosts, 2, 1, 1)
            seen += images[weights == 1, 0, 0, 0].tolist()
    assert sorted(seen) == list(range(7))


def test_the_order_depends_on_the_seed_only(tmp_path: Path, data: DataSet) -> None:
    assert take(data, 0, 2) == take(open_function(write(tmp_path), 5), 0, 2)
    assert Params(seed=6).seed != PARAMS.seed
    rows = training_rows(data, Params(global_batch_size=BATCH, seed=6), 0, 1, 0).take(1)
    ((images, labels),) = rows.as_numpy_iterator()
    assert pairs(images, labels) != take(data, 0, 1)[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "tf.random.stateless_uniform((), (context.seed, number), 0, 200, tf.int32)",
            "tf.random.uniform((), 0, 200, tf.int32)",
            r"mine\.py:14: RandomUniformInt draws other numbers .* tf\.random\.stateless_",
        ),
        (
            "seed=context.seed",
            "",
            r"mine\.py:11: ShuffleDatasetV3 has no seed; pass seed=",
        ),
        (
            "num_parallel_calls=tf.data.AUTOTUNE",
            "num_parallel_calls=2, deterministic=False",
            r"mine\.py:20: returns examples in the order in which threads are ready",
        ),
        (
            "return numbers.map(",
            "again = tf.data.Dataset.random(seed=1, rerandomize_each_iteration=True)\n"
            "    return tf.data.Dataset.zip((numbers, again)).map(lambda n, _: n).map(",
            r"mine\.py:20: draws other numbers after a restart; omit rerandomize_each_iteration",
        ),
    ],
)
def test_operations_that_do_not_repeat_are_refused_with_their_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    graph = trace(load_function(write(tmp_path, (old, new)), "data"))
    with pytest.raises(InputError, match=message + ".*--order=fast"):
        refuse_unrepeatable(graph, "mine.py")


def test_a_seeded_function_is_not_refused_and_python_in_it_is_found(tmp_path: Path) -> None:
    graph = trace(load_function(write(tmp_path), "data"))
    refuse_unrepeatable(graph, "mine.py")
    assert not python_in(graph, "mine.py")
    slow = "tf.ensure_shape(tf.numpy_function(lambda m: m, [n], tf.int64), ())"
    path = write(tmp_path, ("range(count)", f"range(count).map(lambda n: {slow})"))
    assert python_in(trace(load_function(path, "data")), "mine.py").endswith("mine.py:9")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("range(count)", "range(count).repeat()", r"mine\.py:5: split train never ends; remove"),
        ("range(count)", "range(0)", r"mine\.py:5: split train is empty"),
        (", number % 3", ", tf.strings.as_string(number)", "yields words as labels.*numpy.unique"),
        (
            "tf.reshape(image, (2, 1, 1))",
            "tf.reshape(tf.cast(image, tf.float16), (2, 1, 1))",
            r"split train: features is float16, which TPUs do not compute with; expected one of",
        ),
        ("tf.reshape(image, (2, 1, 1))", "tf.constant('a text')", r"yields texts.*data convert"),
        (
            'count = 23 if split == "train" else 7',
            'count = 23\n    if split == "test":\n        return tf.data.Dataset.range(3)',
            r"split test yields features int64 of the shape \(\) with nothing, split train",
        ),
    ],
)
def test_examples_of_a_data_function_are_checked_before_the_first_step(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        open_function(write(tmp_path, (old, new)), 5)


def failed(data: DataSet, params: Params = PARAMS) -> DataError:
    """What a job says of the error that reading two epochs ends with."""
    with pytest.raises(tf.errors.OpError) as caught:
        list(training_rows(data, params, 0, 1, 0).take(8).as_numpy_iterator())
    with pytest.raises(DataError) as told:
        blame_data(data, caught.value)
    return told.value


def test_a_long_count_of_a_function_s_examples_is_progress(
    tmp_path: Path, one_device: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the hang timer would end the job before its first step."""
    monkeypatch.setattr("tpu_training.data.function._BATCH", 10)
    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: one_device)
    path, beats = write(tmp_path), list[str]()
    job = Job("train", None, None, None, path, str(tmp_path), load_model("mnist_cnn"), PARAMS)
    connect_and_open(NoTpu(), Wait(), job, alive=lambda: beats.append("alive"))
    assert len(beats) == 4, "23 and 7 examples"


def test_an_epoch_that_ends_early_is_reported_with_the_line(tmp_path: Path) -> None:
    data = open_function(write(tmp_path, ("range(count)", "range(count - LATER * 3)")), 5)
    assert "mine.py:5: returned 20 examples in an epoch, but announced 23" in str(failed(data))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("number % 3", "number % 3 + LATER * 9", "gave a class other than 0 to 2"),
        (
            "(2, 1, 1))",
            "(2 - LATER, 1 + LATER, 1))",
            "of the shape [1,2,1], but the first",
        ),
    ],
)
def test_examples_unlike_the_first_ones_are_reported_with_the_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """Which only the training meets, as the look saw another epoch."""
    data = open_function(write(tmp_path, (old, new), ('if split == "train":', "if False:")), 5)
    assert message in str(failed(data))
