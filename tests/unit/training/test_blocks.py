"""Blocks that are computed twice, to save memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tensorflow as tf

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
