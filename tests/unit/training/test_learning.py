from __future__ import annotations

import dataclasses
import math
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.reader import JobRecord
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import evaluation_batches, training_batches
from tpu_training.errors import DataError, DivergedError, Interrupted
from tpu_training.loop.callbacks import Callback, LoopReport, ShutdownRequest
from tpu_training.loop.evaluation import create_evaluation
from tpu_training.loop.state import TrainState, compute_dtype, create_train_state
from tpu_training.loop.train import (
    LoopFigures,
    TrainLoop,
    TrainResult,
    create_train_loop,
    run_loop,
    train,
)
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model
from tpu_training.monitoring.measurements import Curves
from tpu_training.monitoring.summaries import Summaries
from tpu_training.monitoring.terminal import Progress

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

MNIST_CNN = load_model("mnist_cnn")
PARAMS = Params(
    epochs=1,
    global_batch_size=64,
    evaluation_batch_size=64,
    steps_per_loop=4,
    checkpoint_interval=6,
)


@pytest.fixture(scope="module")
def data(bars: Path) -> DataSet:
    return open_data(str(bars))


@pytest.fixture
def alone(one_device: Cluster, data: DataSet) -> TrainState:
    """A state on one device, for what is the same on any number of them."""
    return create_train_state(one_device, MNIST_CNN, PARAMS, data.manifest, steps=10)


@pytest.fixture
def state(cluster: Cluster, data: DataSet) -> TrainState:
    return create_train_state(cluster, MNIST_CNN, PARAMS, data.manifest, steps=10)


def checkpoints_of(cluster: Cluster, state: TrainState, folder: Path) -> Checkpoints:
    return Checkpoints(str(folder), state, JobRecord("mnist_cnn", PARAMS), 3, cluster)


def learn(
    cluster: Cluster,
    data: DataSet,
    state: TrainState,
    folder: Path,
    params: Params = PARAMS,
    shutdown: ShutdownRequest | None = None,
) -> TrainResult:
    checkpoints = checkpoints_of(cluster, state, folder)
    summaries = Summaries(str(folder / "tensorboard"))
    request = shutdown or ShutdownRequest()
    try:
        callbacks = [Curves(summaries, Progress(params.global_batch_size), peak=0.0)]
        return train(cluster, params, data, state, checkpoints, callbacks, request)
    finally:
        summaries.close()


def batch_of(size: int) -> Params:
    return dataclasses.replace(PARAMS, global_batch_size=size)


def weights(state: TrainState) -> list[npt.NDArray[np.float32]]:
    return [variable.numpy() for variable in state.model.trainable_variables]


def test_training_lowers_the_loss_and_keeps_all_replicas_alike(
    cluster: Cluster, data: DataSet, state: TrainState, tmp_path: Path
) -> None:
    evaluate = create_evaluation(cluster, PARAMS, data, state)
    before = evaluate()
    result = learn(cluster, data, state, tmp_path)
    after = evaluate()
    assert result.steps == 10
    assert after.loss < before.loss / 2
    assert cluster.replicas == 8
    for variable in state.model.trainable_variables:
        copies = [copy.numpy() for copy in variable.values]
        assert all(np.array_equal(copy, copies[0]) for copy in copies)


def test_tensorboard_gets_the_scalars_of_every_loop(
    one_device: Cluster, data: DataSet, alone: TrainState, tmp_path: Path
) -> None:
    learn(one_device, data, alone, tmp_path)
    (file,) = (tmp_path / "tensorboard").glob("events.*")
    values: dict[str, dict[int, float]] = {}
    for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
            assert value.metadata.plugin_data.plugin_name in ("scalars", "")
            values.setdefault(value.tag, {})[event.step] = float(tf.make_ndarray(value.tensor))
    assert set(values) == {
        "train/loss",
        "train/accuracy",
        "train/gradient_norm",
        "train/learning_rate",
        "train/examples_per_second",
        "train/flops_per_second",
    }
    assert list(values["train/loss"]) == [4, 6, 10]
    assert values["train/loss"][10] < values["train/loss"][4]


def test_evaluation_counts_every_image_exactly_once(
    cluster: Cluster, data: DataSet, state: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compares with one plain pass over the 1,003 images, which no batch size divides."""
    monkeypatch.setattr("tpu_training.loop.evaluation._MOST_STEPS", 7)
    images, labels = [], []
    for record in tf.data.TFRecordDataset(data.paths("test")).as_numpy_iterator():
        feature = tf.train.Example.FromString(record).features.feature
        image = np.frombuffer(feature["image"].bytes_list.value[0], np.uint8)
        images.append(image.reshape(28, 28, 1))
        labels.append(feature["label"].int64_list.value[0])
    logits = state.model(tf.constant(np.stack(images)), training=False)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(tf.constant(labels), logits)
    right = np.mean(np.argmax(logits.numpy(), axis=1) == labels)
    for batch in (64, 4096):
        params = dataclasses.replace(PARAMS, evaluation_batch_size=batch)
        result = create_evaluation(cluster, params, data, state)()
        assert result.examples == 1003
        assert result.metrics["accuracy"] == pytest.approx(right, abs=1e-6)
        assert result.loss == pytest.approx(float(tf.reduce_mean(losses)), rel=1e-4)


def test_example_counts_beyond_float32_precision_are_exact(
    one_device: Cluster, data: DataSet, alone: TrainState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights stand for examples: 64 times 2 ** 20 in one batch, and a single one in the next."""
    weights = np.zeros((2, 64), np.float32)
    weights[0], weights[1, 0] = 2**20, 1
    features, labels = np.zeros((2, 64, 28, 28, 1), np.uint8), np.zeros((2, 64), np.int32)
    batches = iter(tf.data.Dataset.from_tensor_slices((features, labels, weights)).repeat())
    monkeypatch.setattr(
        "tpu_training.data.pipeline.evaluation_batches", lambda *_: (lambda: next(batches), 2)
    )
    examples = 2**26 + 1
    assert int(np.float32(examples)) != examples
    split = dataclasses.replace(data.manifest.split("test"), examples=examples)
    large = dataclasses.replace(data.manifest, splits={**data.manifest.splits, "test": split})
    evaluate = create_evaluation(
        one_device, PARAMS, dataclasses.replace(data, manifest=large), alone
    )
    assert [evaluate().examples for _ in range(2)] == [examples] * 2
    assert evaluate().metrics["accuracy"] in (0.0, 1.0), "all of the features are alike"


def test_an_evaluation_ends_between_two_loops_when_it_is_asked_to_and_steps_are_saved(
    one_device: Cluster, data: DataSet, alone: TrainState, tmp_path: Path
) -> None:
    shutdown = ShutdownRequest()
    asked = []

    def check() -> None:
        asked.append(1)
        shutdown.request("a notice came")
        shutdown.check()

    evaluate = create_evaluation(one_device, PARAMS, data, alone, check=check)

    def validate(step: int) -> None:
        evaluate()

    params = dataclasses.replace(PARAMS, evaluation_interval=4)
    with pytest.raises(Interrupted, match="a notice came"):
        train(
            one_device,
            params,
            data,
            alone,
            checkpoints_of(one_device, alone, tmp_path),
            [],
            shutdown,
            validate,
        )
    assert len(asked) == 1
    assert (tmp_path / "checkpoints" / "ckpt-4.index").is_file()


def test_counts_of_a_loop_of_steps_are_integers_to_the_end(
    one_device: Cluster, data: DataSet, alone: TrainState
) -> None:
    batches = training_batches(data, one_device, PARAMS)
    loop = create_train_loop(one_device, PARAMS, alone, batches)
    with pytest.MonkeyPatch.context() as patch:
        many = 2**24 + 1
        patch.setattr(
            type(alone.counted),
            "count",
            lambda *_: (tf.zeros((0,)), tf.constant([many, many], tf.int64)),
        )
        figures = run_loop(one_device, loop, 3)
    assert figures.sums.tolist() == [3 * many, 3 * many]


def test_every_batch_has_the_static_shape_of_its_replica(cluster: Cluster, data: DataSet) -> None:
    for next_batch in (
        training_batches(data, cluster, batch_of(32)),
        evaluation_batches(data, cluster, dataclasses.replace(PARAMS, evaluation_batch_size=32))[0],
    ):
        parts = next_batch()
        for image in parts[0].values:
            assert image.shape == (4, 28, 28, 1)
            assert image.dtype == tf.uint8


def test_an_epoch_deals_every_training_image_to_exactly_one_replica(
    cluster: Cluster, data: DataSet
) -> None:
    next_batch = training_batches(data, cluster, batch_of(64))
    labels = [labels.numpy() for _ in range(10) for labels in next_batch()[1].values]
    assert np.bincount(np.concatenate(labels)).tolist() == [64] * 10


def test_a_manifest_that_announces_other_examples_than_the_files_hold_is_an_error(
    one_device: Cluster, data: DataSet, alone: TrainState
) -> None:
    for examples in (900, 2 * 1003):
        split = dataclasses.replace(data.manifest.split("test"), examples=examples)
        wrong = dataclasses.replace(data.manifest, splits={**data.manifest.splits, "test": split})
        with pytest.raises(DataError, match=f"manifest lists {examples}"):
            create_evaluation(
                one_device, PARAMS, dataclasses.replace(data, manifest=wrong), alone
            )()


def test_a_nan_loss_ends_the_job_and_keeps_the_last_checkpoint(
    one_device: Cluster, data: DataSet, alone: TrainState, tmp_path: Path
) -> None:
    alone.step.assign(6)
    with checkpoints_of(one_device, alone, tmp_path) as checkpoints:
        checkpoints.save(6)
    good = weights(alone)
    for variable in alone.model.trainable_variables:
        variable.assign(tf.fill(variable.shape, math.nan))
    with pytest.raises(DivergedError, match=r"nan between step 6 and 10.*--learning_rate.*ckpt-6"):
        learn(one_device, data, alone, tmp_path)
    assert checkpoints_of(one_device, alone, tmp_path).restore_latest()
    assert all(np.array_equal(a, b) for a, b in zip(weights(alone), good, strict=True))


def test_sigterm_saves_the_step_that_was_reached_and_asks_for_a_restart(
    one_device: Cluster, data: DataSet, alone: TrainState, tmp_path: Path
) -> None:
    shutdown = ShutdownRequest()
    shutdown.requested = True
    with pytest.raises(Interrupted, match="step 4 is saved") as caught:
        learn(one_device, data, alone, tmp_path, shutdown=shutdown)
    assert caught.value.exit_code == 75
    fresh = create_train_state(one_device, MNIST_CNN, PARAMS, data.manifest, steps=10)
    checkpoints_of(one_device, fresh, tmp_path).restore_latest()
    assert int(fresh.step.numpy()) == 4
    assert learn(one_device, data, fresh, tmp_path).steps == 10


class Host(Callback):
    """Waits after each loop until the next one runs, unless something is due; notes the order."""

    def __init__(self, began: threading.Semaphore, free: set[int]) -> None:
        self.began, self.free, self.seen = began, free, list[str]()

    def before_loop(self, step: int, report: LoopReport) -> None:
        assert not self.began.acquire(blocking=False), "no step is done meanwhile"

    def between_loops(self, step: int, report: LoopReport) -> None:
        self.seen.append(f"loop {step}")
        alone = step in self.free
        assert self.began.acquire(timeout=0.2 if alone else 60.0) != alone


def test_host_work_overlaps_the_next_loop_except_for_evaluations_and_the_end(
    one_device: Cluster,
    data: DataSet,
    alone: TrainState,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    began = threading.Semaphore(0)
    first = iter([True])

    def noted(cluster: Cluster, loop: TrainLoop, count: int) -> LoopFigures:
        if not next(first, False) and int(alone.step.numpy()) != 6:
            began.release()
        return run_loop(cluster, loop, count)

    monkeypatch.setattr("tpu_training.loop.train.run_loop", noted)
    params = dataclasses.replace(PARAMS, steps_per_loop=2, evaluation_interval=6)
    host = Host(began, {6, 10})
    saved = checkpoints_of(one_device, alone, tmp_path)
    shutdown = ShutdownRequest()
    evaluated = host.seen.append
    train(
        *(one_device, params, data, alone, saved, [host], shutdown),
        lambda step: evaluated(f"evaluation {step}"),
    )
    assert host.seen == ["loop 2", "loop 4", "loop 6", "evaluation 6", "loop 8", "loop 10"]


def test_an_error_of_a_callback_ends_the_training_once_the_steps_under_way_have_ended(
    one_device: Cluster, data: DataSet, alone: TrainState, tmp_path: Path
) -> None:
    class Broken(Callback):
        def between_loops(self, step: int, report: LoopReport) -> None:
            raise OSError("the disk is full")

    params = dataclasses.replace(PARAMS, checkpoint_interval=0)
    saved = checkpoints_of(one_device, alone, tmp_path)
    with pytest.raises(OSError, match="the disk is full"):
        train(one_device, params, data, alone, saved, [Broken()], ShutdownRequest())
    assert int(alone.step.numpy()) == 8


def test_files_that_are_missing_or_short_are_listed(bars: Path, tmp_path: Path) -> None:
    copy = tmp_path / "data"
    shutil.copytree(bars, copy)
    (copy / "bars-train-00000-of-00001.tfrecord").unlink()
    with (copy / "bars-test-00000-of-00001.tfrecord").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError) as caught:
        open_data(f"{copy}/")
    assert "bars-train-00000-of-00001.tfrecord is missing" in str(caught.value)
    assert "bars-test-00000-of-00001.tfrecord has" in str(caught.value)
    (copy / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"no manifest\.json"):
        open_data(str(copy))


def test_bfloat16_computes_in_bfloat16_and_keeps_float32_weights(
    one_device: Cluster, data: DataSet, alone: TrainState
) -> None:
    params = dataclasses.replace(PARAMS, precision="bfloat16")
    assert compute_dtype(PARAMS, one_device) == tf.float32
    assert compute_dtype(params, one_device) == tf.bfloat16
    assert create_evaluation(one_device, params, data, alone)().examples == 1003
    assert all(v.dtype == tf.float32 for v in alone.model.trainable_variables)


def test_the_same_seed_gives_the_same_weights(cluster: Cluster, data: DataSet) -> None:
    first, again, other = (
        weights(create_train_state(cluster, MNIST_CNN, Params(seed=seed), data.manifest, steps=1))
        for seed in (1, 1, 2)
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
