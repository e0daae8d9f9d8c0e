"""The networks are those of their papers, and learn."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from tpu_training.errors import InputError
from tpu_training.models.registry import load_model
from tpu_training.models.spec import DataSpec

if TYPE_CHECKING:
    import tensorflow as tf


pytestmark = pytest.mark.usefixtures("cluster")

IMAGENET = DataSpec("image", (224, 224, 3), "uint8", 1000)
CIFAR = DataSpec("image", (32, 32, 3), "uint8", 10)
SENTENCES = DataSpec("text", (12,), "int32", 2, vocabulary=40)


def create(name: str, spec: DataSpec, **changes: Any) -> tf.Module:
    definition = load_model(name)
    values: dict[str, Any] = {"precision": "float32", **changes}
    return definition.create_model(dataclasses.replace(definition.params(), **values), spec, 0)


def weights(model: tf.Module) -> int:
    return sum(int(variable.shape.num_elements()) for variable in model.trainable_variables)


# The counts of torchvision's models of the same names.
@pytest.mark.parametrize(
    ("depth", "count"),
    [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)],
)
def test_a_resnet_for_imagenet_has_the_published_number_of_weights(depth: int, count: int) -> None:
    assert weights(create("resnet", IMAGENET, depth=depth)) == count


# Table 6 of arXiv:1512.03385 says 0.27, 0.46, 0.66 and 0.85 million; its shortcuts are identities.
@pytest.mark.parametrize(("depth", "millions"), [(20, 0.27), (32, 0.46), (44, 0.66), (56, 0.85)])
def test_a_small_resnet_has_the_published_number_of_weights(depth: int, millions: float) -> None:
    assert weights(create("resnet", CIFAR, depth=depth)) / 1e6 == pytest.approx(millions, abs=0.01)


def test_a_wider_resnet_has_more_channels_in_all_stages() -> None:
    wide = create("resnet", CIFAR, depth=20, width=2)
    assert [block.outputs for block in wide.blocks[::3]] == [32, 64, 128]
    assert weights(wide) / weights(create("resnet", CIFAR, depth=20)) == pytest.approx(4, abs=0.05)


def test_an_unknown_resnet_depth_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"--depth=21: .* expected one of 8, 14, 18, 20"):
        create("resnet", CIFAR, depth=21)


def test_heads_have_to_divide_the_hidden_size() -> None:
    with pytest.raises(InputError, match=r"--hidden_size=100 .* --heads=3; use 99"):
        create("bert", SENTENCES, hidden_size=100, heads=3)


def test_a_text_model_refuses_images() -> None:
    with pytest.raises(InputError, match="takes text, but the dataset has image"):
        create("bert", CIFAR)


def test_padding_changes_nothing() -> None:
    import tensorflow as tf

    model = create("bert", SENTENCES)
    wider = create("bert", DataSpec("text", (20,), "int32", 2, vocabulary=40))
    wider.positions.table[:12].assign(model.positions.table)
    ids = tf.constant([[7, 3, 9, 1, 4, 0, 0, 0, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]])
    padded = tf.pad(ids, [[0, 0], [0, 8]])
    assert model(ids).numpy() == pytest.approx(wider(padded).numpy(), abs=1e-5)


def test_a_row_of_only_padding_stays_finite() -> None:
    import tensorflow as tf

    logits = create("bert", SENTENCES)(tf.zeros((1, 12), tf.int32))
    assert bool(tf.reduce_all(tf.math.is_finite(logits)))


@pytest.mark.parametrize("remat", ["none", "blocks"])
@pytest.mark.parametrize(("start", "causal"), [(0, False), (1, True)])
def test_a_long_text_attends_in_blocks_as_it_does_at_once(
    start: int, causal: bool, remat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    from tpu_training.models import layers
    from tpu_training.models.step_context import step_context

    spec = DataSpec("text", (29,), "int32", 2, 40, outputs=(29, 40), causal=causal, start=start)
    model = create("bert", spec, dropout=0.0, remat=remat)
    ids = tf.random.stateless_uniform((2, 29), (1, 2), minval=1, maxval=6, dtype=tf.int32)
    ids *= tf.cast(tf.range(29) < [[29], [20]], tf.int32)

    def answer() -> tuple[tf.Tensor, list[tf.Tensor]]:
        seed = tf.constant([3, 4])
        with step_context(seed, frozenset(), lambda values: values), tf.GradientTape() as tape:
            logits = model(ids, training=True) * tf.cast(ids > 0, tf.float32)[..., None]
            loss = tf.reduce_mean(tf.square(logits))
        gradients = tape.gradient(loss, model.trainable_variables)
        return logits, [tf.convert_to_tensor(gradient) for gradient in gradients]

    at_once, gradients = tf.function(answer, autograph=False)()
    # Blocks of 6, the last of which is only half full.
    monkeypatch.setattr(layers, "_LONG", 12)
    in_blocks, same = tf.function(answer, autograph=False)()
    tf.debugging.assert_near(in_blocks, at_once, atol=1e-5, rtol=1e-4)
    for gradient, other in zip(gradients, same, strict=True):
        tf.debugging.assert_near(other, gradient, atol=1e-6, rtol=1e-4)


def test_the_arithmetic_is_done_in_the_precision_and_the_logits_are_float32() -> None:
    import tensorflow as tf

    for name, spec in (("resnet", CIFAR), ("bert", SENTENCES)):
        changes = {"depth": 8} if name == "resnet" else {}
        model = create(name, spec, precision="bfloat16", **changes)
        exact = create(name, spec, **changes)
        features = tf.cast(tf.ones((2, *spec.shape)), spec.dtype)
        logits = model(features)
        assert logits.dtype == tf.float32
        assert logits.numpy() == pytest.approx(exact(features).numpy(), abs=0.05)
        assert bool(tf.reduce_any(logits != exact(features)))


@pytest.mark.usefixtures("quick_xla")
def test_the_first_weights_do_not_depend_on_the_device_that_draws_them() -> None:
    import tensorflow as tf

    from tpu_training.models.layers import random_normal

    drawn = random_normal((300, 70), 0.1, 7)
    compiled = tf.function(lambda: random_normal((300, 70), 0.1, 7), jit_compile=True)()
    # XLA's functions of the same algorithm may differ in the last bit.
    tf.debugging.assert_near(drawn, compiled, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    ("name", "spec", "changes"),
    [("mnist_cnn", CIFAR, {}), ("resnet", CIFAR, {"depth": 8}), ("bert", SENTENCES, {})],
)
def test_a_built_in_model_names_the_algorithm_that_draws_its_weights(
    name: str, spec: DataSpec, changes: dict[str, int]
) -> None:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        create(name, spec, **changes)
    draws = [op for op in graph.get_operations() if op.type == "StatelessRandomNormalV2"]
    algorithms = {int(tf.get_static_value(draw.inputs[3])) for draw in draws}
    assert algorithms == {tf.random.Algorithm.PHILOX.value}
