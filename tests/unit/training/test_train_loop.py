"""One step of training: parts, replicas, seeds and moving averages add up."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.pipeline import training_batches
from tpu_training.errors import InputError
from tpu_training.loop.evaluation import create_evaluation
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop
from tpu_training.models.layers import Dense
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition, load_model
from tpu_training.models.spec import DataSpec
from tpu_training.models.step_context import next_seed, record_statistic
from tpu_training.tasks.built_in import softmax_cross_entropy

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

PARAMS = Params(epochs=1, global_batch_size=64, warmup_fraction=0)


class Probe(tf.Module):  # type: ignore[misc]
    """Remembers a mean over its batch, and a random number."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.dense = Dense(28 * 28, classes, seed=1)
        self.mean = tf.Variable(0.0, trainable=False)
        self.random = tf.Variable(0.0, trainable=False)

    def __call__(self, features: tf.Tensor, training: bool) -> tf.Tensor:
        pixels = tf.cast(tf.reshape(features, (-1, 28 * 28)), tf.float32) / 255.0
        if training:
            record_statistic(self.mean, tf.reduce_mean(pixels), 0.0)
            record_statistic(self.random, tf.random.stateless_uniform((), next_seed()), 0.0)
        return self.dense(pixels)


class Branches(Probe):
    """Python that decides by a tensor's value."""

    def __call__(self, features: tf.Tensor, training: bool) -> tf.Tensor:
        if tf.reduce_sum(tf.cast(features, tf.float32)) < 0.0:
            features = features[::-1]
        return super().__call__(features, training)


def create_probe(_params: Params, spec: DataSpec, _seed: int) -> Probe:
    return Probe(spec.classes)


PROBE = ModelDefinition("probe", Params, create_probe)


@pytest.fixture(scope="module")
def data(bars: Path) -> DataSet:
    return open_data(str(bars))


def learn(
    cluster: Cluster, data: DataSet, definition: ModelDefinition, steps: int, **changes: Any
) -> Any:
    """The model after `steps` steps from the beginning."""
    params = dataclasses.replace(PARAMS, **changes)
    state = create_train_state(cluster, definition, params, data.manifest, steps=10)
    loop = create_train_loop(cluster, params, state, training_batches(data, cluster, params))
    loop(tf.constant(steps))
    return state.model


def weights(model: Any) -> list[npt.NDArray[np.float32]]:
    return [variable.numpy() for variable in model.variables]


def test_a_batch_in_parts_gives_the_gradients_of_the_whole_batch(
    cluster: Cluster, one_device: Cluster, data: DataSet
) -> None:
    settings = {"optimizer": "sgd", "learning_rate": 0.05, "clip_norm": 1.0, "weight_decay": 0.01}
    model = load_model("mnist_cnn")
    whole, parts, alone = (
        weights(learn(where, data, model, 2, gradient_accumulation=parts, **settings))
        for where, parts in ((one_device, 1), (cluster, 4), (one_device, 16))
    )
    for first, second, third in zip(whole, parts, alone, strict=True):
        assert second == pytest.approx(first, abs=1e-6)
        assert third == pytest.approx(first, abs=1e-6)


def test_a_batch_that_does_not_divide_into_parts_is_refused_with_sizes_that_would_do() -> None:
    params = dataclasses.replace(PARAMS, gradient_accumulation=3)
    with pytest.raises(InputError, match=r"replicas 8, which .*accumulation=3; use 48 or 72"):
        params.part_batch_size(8)


def test_a_moving_average_covers_all_replicas_and_parts_and_is_equal_on_each(
    cluster: Cluster, data: DataSet
) -> None:
    model = learn(cluster, data, PROBE, 1, gradient_accumulation=2)
    assert [copy.numpy() for copy in model.mean.values] == pytest.approx([3 / 28] * 8, rel=0.05)
    assert len({float(copy) for copy in model.random.values}) == 1


def test_random_numbers_differ_by_step_and_repeat_when_a_step_is_repeated(
    one_device: Cluster, data: DataSet
) -> None:
    first, again, other_step, other_seed = (
        learn(one_device, data, PROBE, steps, seed=seed).random.numpy()
        for steps, seed in ((1, 0), (1, 0), (2, 0), (1, 1))
    )
    assert first == again
    assert len({first, other_step, other_seed}) == 3


def test_the_same_seed_gives_the_same_bits_on_one_device(
    one_device: Cluster, data: DataSet
) -> None:
    first, second = (weights(learn(one_device, data, load_model("mnist_cnn"), 4)) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_autograph_runs_for_user_models_only(one_device: Cluster, data: DataSet) -> None:
    built_in = dataclasses.replace(PROBE, create_model=lambda *_: Branches(10))
    own = dataclasses.replace(built_in, own=True)
    assert learn(one_device, data, own, 1).mean.numpy() == pytest.approx(3 / 28, rel=0.05)
    state = create_train_state(one_device, own, PARAMS, data.manifest, steps=10)
    assert create_evaluation(one_device, PARAMS, data, state)().examples == 1003
    with pytest.raises(TypeError, match="AutoGraph"):
        learn(one_device, data, built_in, 1)


def test_label_smoothing_mixes_each_label_with_all_classes(cluster: Cluster) -> None:
    logits, labels = tf.constant([[2.0, 0.0, -1.0]]), tf.constant([1])
    soft = tf.constant([[0.1 / 3, 0.9 + 0.1 / 3, 0.1 / 3]])
    expected = tf.nn.softmax_cross_entropy_with_logits(soft, logits)
    params = dataclasses.replace(PARAMS, label_smoothing=0.1)
    assert softmax_cross_entropy(logits, labels, params).numpy() == pytest.approx(expected.numpy())
