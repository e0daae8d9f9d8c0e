"""The average of the weights: it follows them, and is what evaluations and exports use."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.unit.training.test_train_loop import PROBE, Probe
from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.initial_weights import read_weights
from tpu_training.checkpoints.reader import JobRecord, restore_averages
from tpu_training.data.data_set import open_data
from tpu_training.loop.state import TrainState, WeightAverage, averaged, create_train_state
from tpu_training.models.model import variable_paths
from tpu_training.models.params import Params
from tpu_training.serving.model import restore_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

PARAMS = Params(global_batch_size=64, ema_decay=0.9)


def test_the_average_follows_the_weights_as_its_formula_says_and_leaves_frozen_ones_out(
    cluster: Cluster,
) -> None:
    with cluster.strategy.scope():
        model = Probe(10)
        average = WeightAverage(model, frozenset({id(model.dense.bias)}), 0.5)
    assert "dense/bias" not in average.shadows
    expected = start = model.dense.kernel.numpy()
    follow = tf.function(lambda step: cluster.strategy.run(average.update, (step,)))
    for step, decay in ((0, 0.1), (1, 2 / 11), (20, 0.5)):
        model.dense.kernel.assign(start * (step + 2.0))
        follow(tf.constant(step, tf.int64))
        expected = decay * expected + (1 - decay) * start * (step + 2.0)
    shadow = average.shadows["dense/kernel"]
    assert shadow.numpy() == pytest.approx(expected, rel=1e-5)
    assert all(np.array_equal(copy.numpy(), shadow.numpy()) for copy in shadow.values)


def test_an_evaluation_sees_the_average_and_leaves_the_weights_as_they_were(
    cluster: Cluster,
) -> None:
    with cluster.strategy.scope():
        model = Probe(10)
        average = WeightAverage(model, frozenset(), 0.5)
    before = model.dense.kernel.numpy()
    average.shadows["dense/kernel"].assign(before + 1.0)
    seen: list[npt.NDArray[np.float32]] = []

    def evaluate() -> None:
        with averaged(cluster, average):
            seen.extend(copy.numpy() for copy in model.dense.kernel.values)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate()
    assert len(seen) == 8
    assert all(np.array_equal(copy, before + 1.0) for copy in seen)
    assert np.array_equal(model.dense.kernel.numpy(), before)
    assert np.array_equal(average.shadows["dense/kernel"].numpy(), before + 1.0)


def test_the_exchange_is_traced_once_for_all_evaluations(one_device: Cluster) -> None:
    traced = []

    class Noted(WeightAverage):
        def exchange(self) -> None:
            traced.append(self)
            super().exchange()

    with one_device.strategy.scope():
        average = Noted(Probe(10), frozenset(), 0.5)
    for _ in range(3):
        with averaged(one_device, average):
            pass
    assert len(traced) == 1


@pytest.fixture
def create(one_device: Cluster, bars: Path) -> Callable[[Params], TrainState]:
    manifest = open_data(str(bars)).manifest
    return lambda params: create_train_state(one_device, PROBE, params, manifest, 10)


def saved_in(folder: Path, state: TrainState, params: Params, cluster: Cluster) -> Checkpoints:
    return Checkpoints(str(folder), state, JobRecord("probe", params), 3, cluster)


def test_a_checkpoint_holds_the_averaged_weights_next_to_the_weights(
    one_device: Cluster, create: Callable[[Params], TrainState], tmp_path: Path
) -> None:
    state, other = create(PARAMS), create(PARAMS)
    assert state.average
    assert other.average
    state.average.shadows["dense/bias"].assign(tf.fill((10,), 7.0))
    with saved_in(tmp_path, state, PARAMS, one_device) as checkpoints:
        checkpoints.save(3)
    path = saved_in(tmp_path, other, PARAMS, one_device).restore_latest()
    assert path
    assert other.average.shadows["dense/bias"].numpy().tolist() == [7.0] * 10
    assert other.model.dense.bias.numpy().tolist() == [0.0] * 10
    assert read_weights(str(tmp_path))["dense/bias"].read().tolist() == [7.0] * 10
    assert restore_averages(other.model, path)
    assert other.model.dense.bias.numpy().tolist() == [7.0] * 10


def test_an_average_begins_with_the_weights_of_a_checkpoint_that_has_none(
    one_device: Cluster, create: Callable[[Params], TrainState], tmp_path: Path
) -> None:
    plain, later = create(Params(global_batch_size=64)), create(PARAMS)
    plain.model.dense.bias.assign(tf.fill((10,), 5.0))
    with saved_in(tmp_path, plain, PARAMS, one_device) as checkpoints:
        checkpoints.save(3)
    path = saved_in(tmp_path, later, PARAMS, one_device).restore_latest()
    assert later.average
    assert later.average.shadows["dense/bias"].numpy().tolist() == [5.0] * 10
    assert not restore_averages(later.model, path or "")


def test_evaluation_export_and_prediction_of_a_job_use_its_average(
    bars: Path, run_here: Callable[..., None], tmp_path: Path
) -> None:
    sizes = ("--global_batch_size=64", "--evaluation_batch_size=64", "--snapshot_interval=0")
    where = (f"--data={bars}", f"--model-dir={tmp_path}")
    # After 20 steps at most; with this decay the average is far behind the weights.
    run_here("train-and-evaluate", *where, *sizes, "--epochs=1", "--ema_decay=0.999999")
    metrics = tmp_path / "metrics.json"
    accuracy = json.loads(metrics.read_text())["test_accuracy"]
    metrics.unlink()
    run_here("evaluate", *where, *sizes, "--epochs=1")
    assert json.loads(metrics.read_text())["test_accuracy"] == accuracy
    average = read_weights(str(tmp_path))
    exported = dict(variable_paths(restore_model(str(tmp_path)).module))
    assert all(np.array_equal(exported[name].numpy(), average[name].read()) for name in exported)
