"""Rematerialised blocks, and batch normalisation over all replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.loop.step import current_replica
from tpu_training.models.layers import BatchNorm
from tpu_training.models.params import build_params
from tpu_training.models.registry import load_model
from tpu_training.models.spec import DataSpec
from tpu_training.models.step_context import step_context

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

IMAGES = DataSpec("image", (8, 8, 1), "uint8", 3)
TEXTS = DataSpec("text", (6,), "int32", 3, vocabulary=9)


def step(name: str, spec: DataSpec, **given: Any) -> tuple[list[Any], int, int]:
    """The gradients of a training step; how many averages it moves and how many seeds it takes."""
    definition = load_model(name)
    params = build_params(given | {"precision": "float32"}, (), kind=definition.params)
    model = definition.create_model(params, spec, 1)
    values = tf.random.stateless_uniform((4, *spec.shape), (1, 2), 0, 9, tf.int32)
    with step_context(tf.constant([3, 4])) as context, tf.GradientTape() as tape:
        logits = model(tf.cast(values, spec.dtype), training=True)
        loss = tf.reduce_sum(tf.square(logits - 1.0))
    gradients = tape.gradient(loss, model.trainable_variables)
    numbers = [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]
    return numbers, len(context.averages), context.seeds_given


@pytest.mark.parametrize(
    ("name", "spec", "given"),
    [
        ("resnet", IMAGES, {"depth": 8}),
        ("bert", TEXTS, {"layers": 2, "hidden_size": 8, "dropout": 0.5}),
    ],
)
def test_a_rematerialised_model_has_the_same_gradients_averages_and_random_numbers(
    one_device: Cluster, name: str, spec: DataSpec, given: dict[str, Any]
) -> None:
    plain, *counted = step(name, spec, **given)
    again, *recounted = step(name, spec, **given, remat="blocks")
    assert counted == recounted
    for first, second in zip(plain, again, strict=True):
        assert second == pytest.approx(first, rel=1e-5, abs=1e-6)


def test_synchronised_batch_normalisation_is_that_of_the_whole_batch_in_values_and_gradients(
    cluster: Cluster,
) -> None:
    batch = tf.random.stateless_normal((16, 2, 2, 3), (1, 2), mean=2.0)
    weights = tf.random.stateless_normal((16, 2, 2, 3), (3, 4))
    with cluster.strategy.scope():
        norm = BatchNorm(3)
        norm.synchronised = True

    def replica(part: tf.Tensor, weight: tf.Tensor) -> tuple[tf.Tensor, ...]:
        here = current_replica()
        with (
            step_context(tf.constant([0, 0]), sum_all=here.sum) as context,
            tf.GradientTape() as tape,
        ):
            tape.watch(part)
            y = norm(part, training=True)
            loss = tf.reduce_sum(y * weight)
        return y, tape.gradient(loss, part), *context.statistics

    def rows(values: tf.Tensor) -> tf.Tensor:
        parts = tf.split(values, cluster.replicas)
        return cluster.strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )

    run = tf.function(lambda *parts: cluster.strategy.run(replica, parts), autograph=False)
    outputs, gradients, means, variances = (
        np.concatenate([np.atleast_2d(part) for part in value.values])
        for value in run(rows(batch), rows(weights))
    )
    with tf.GradientTape() as tape:
        tape.watch(batch)
        mean, variance = tf.nn.moments(batch, axes=(0, 1, 2))
        whole = (batch - mean) * tf.math.rsqrt(variance + 1e-5)
        loss = tf.reduce_sum(whole * weights)
    assert outputs == pytest.approx(whole.numpy(), abs=1e-4)
    assert gradients == pytest.approx(tape.gradient(loss, batch).numpy(), abs=1e-4)
    assert means == pytest.approx(np.tile(mean, (8, 1)), abs=1e-5)
    assert variances == pytest.approx(np.tile(variance, (8, 1)), abs=1e-4)


def test_statistics_of_all_replicas_exclude_gradient_accumulation() -> None:
    message = "--batch_norm=all_replicas --gradient_accumulation=2: parts of a batch pass one"
    with pytest.raises(InputError, match=message):
        step("resnet", IMAGES, depth=8, batch_norm="all_replicas", gradient_accumulation=2)
