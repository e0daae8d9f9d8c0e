"""`fit` with several targets and with weights of examples, exact over replicas and padding."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tpu_training
from tpu_training.errors import DataError, InputError

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

KERAS = pytest.mark.skipif(
    not hasattr(pytest.importorskip("keras"), "StatelessScope"), reason="own models need Keras 3"
)

RANDOM = np.random.default_rng(11)
ROWS = RANDOM.normal(size=(48, 4)).astype(np.float32)
TARGETS: dict[str, Any] = {
    "kind": RANDOM.integers(0, 3, 48),
    "size": ROWS[:, :1] * 2,
    "tags": (ROWS[:, :2] > 0).astype(np.int32),
}
HELD: Any = {name: values[:21] for name, values in TARGETS.items()}
WEIGHTS = RANDOM.integers(0, 3, 48) / 2
SIZES: dict[str, Any] = {
    "global_batch_size": 16,
    "evaluation_batch_size": 16,
    "steps_per_loop": 3,
    "optimizer": "sgd",
    "learning_rate": 0.01,
    "epochs": 1,
}
LOSSES = {"kind": "sparse_categorical_crossentropy", "size": "mse", "tags": "binary_crossentropy"}


def on(devices: Cluster, **arguments: Any) -> tpu_training.Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tpu_training.job.run.connect", functools.cache(lambda *_: devices))
        return tpu_training.fit(**SIZES | arguments)


def three_outputs(spec: Any) -> Any:
    import keras

    inputs = keras.Input((4,))
    outputs = {
        "kind": keras.layers.Dense(3, activation="softmax")(inputs),
        "size": keras.layers.Dense(1)(inputs),
        "tags": keras.layers.Dense(2, activation="sigmoid")(inputs),
    }
    model = keras.Model(inputs, outputs)
    model.compile(loss=LOSSES, loss_weights={"size": 0.5})
    return model


@KERAS
def test_the_losses_of_three_targets_are_exact_over_8_replicas_and_padding(
    cluster: Cluster, one_device: Cluster, tmp_path: Path
) -> None:
    import keras

    eight, one = (
        on(
            devices,
            model=three_outputs,
            data=(ROWS, TARGETS, WEIGHTS),
            test=(ROWS[:21], HELD),
            metrics={"kind": ["accuracy"], "size": keras.metrics.MeanAbsoluteError(name="mae")},
            model_dir=f"{tmp_path}/{devices.replicas}",
        )
        for devices in (cluster, one_device)
    )
    assert eight.history[0]["loss"] == pytest.approx(one.history[0]["loss"], rel=1e-5)
    for mine, theirs in zip(eight.model.variables, one.model.variables, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-6)
    said = eight.predict(ROWS[:21])
    picked = said["kind"][np.arange(21), HELD["kind"]]
    tags = np.where(HELD["tags"] == 1, said["tags"], 1 - said["tags"])
    squares = np.mean((said["size"] - HELD["size"]) ** 2)
    expected = -np.log(picked).mean() + squares / 2 - np.log(tags).mean()
    metrics = eight.metrics
    assert metrics["test_examples"] == 21
    assert metrics["test_loss"] == pytest.approx(expected, rel=1e-5)
    right = np.mean(said["kind"].argmax(axis=1) == HELD["kind"])
    assert metrics["test_kind_accuracy"] == pytest.approx(right)
    distance = np.abs(said["size"] - HELD["size"]).mean()
    assert metrics["test_size_mae"] == pytest.approx(distance, rel=1e-5)


def linear(params: Any, spec: Any, seed: int) -> Any:
    import tensorflow as tf

    class Linear(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(tf.ones((4, 2)))

        def __call__(self, features: Any, training: bool) -> Any:
            return features @ self.kernel

    return Linear()


def test_an_examples_weight_multiplies_its_loss(one_device: Cluster, tmp_path: Path) -> None:
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((ROWS, ROWS[:, :2], WEIGHTS))
    held = (ROWS[:21], ROWS[:21, :2], WEIGHTS[:21])
    result = on(one_device, model=linear, data=rows, test=held, model_dir=str(tmp_path))
    # Before the first step the kernel is of ones; the gradient of one epoch's batches is small.
    losses = np.mean((ROWS @ result.model.kernel.numpy() - ROWS[:, :2]) ** 2, axis=1)
    assert result.metrics["test_loss"] == pytest.approx(np.mean(losses[:21] * WEIGHTS[:21]), 1e-5)
    assert result.history[0]["loss"] < np.mean((ROWS @ np.ones((4, 2)) - ROWS[:, :2]) ** 2)
    mean = tpu_training.evaluate(result, (ROWS[:21], ROWS[:21, :2]))["loss"]
    assert mean == pytest.approx(losses[:21].mean(), rel=1e-5)


def test_a_task_of_ones_own_gets_the_targets_by_name(one_device: Cluster, tmp_path: Path) -> None:
    import tensorflow as tf

    def losses(outputs: Any, targets: Any, params: Any) -> Any:
        return tf.reduce_mean((outputs - targets["size"]) ** 2, axis=1)

    def wrong(outputs: Any, targets: Any, weights: Any) -> Any:
        found = tf.cast(outputs[:, 0] > 0, tf.int64) != targets["kind"]
        return tf.reduce_sum(tf.cast(found, tf.float32) * weights), tf.reduce_sum(weights)

    wrongs = tpu_training.Metric("wrong", wrong, tpu_training.mean)
    task = tpu_training.Task("size", losses, lambda spec: [wrongs], targets="several")
    given = {"model": linear, "task": task, "model_dir": str(tmp_path)}
    result = on(one_device, data=(ROWS, TARGETS), test=(ROWS[:21], HELD), **given)
    said = result.predict(ROWS[:21])["outputs"]
    expected = np.mean((said - HELD["size"]) ** 2)
    assert result.metrics["test_loss"] == pytest.approx(expected, rel=1e-5)
    assert result.metrics["test_wrong"] == pytest.approx(np.mean((said[:, 0] > 0) != HELD["kind"]))


ONES = np.ones(len(ROWS), np.float32)


@KERAS
@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": "mse"}, "loss='mse': expected a dictionary with a loss for each of the targets"),
        ({"metrics": {"colour": "mse"}}, "expected a dictionary with metrics of the targets kind"),
        ({"data": (ROWS, {"size": ROWS})}, "has the outputs kind, size, tags, but the targets are"),
        ({"data": (ROWS, {**TARGETS, "tags": HELD["tags"]})}, "targets/tags has 21"),
        (
            {"data": (ROWS, TARGETS, ROWS)},
            "split train: weights has the shape (4,) in an example; expected one number",
        ),
        ({"data": (ROWS, TARGETS, -ONES)}, "gave a negative number in weights"),
        ({"model": linear}, "neither losses nor a step: compile a Keras model with loss={'kind'"),
    ],
)
def test_targets_that_do_not_fit_are_refused(
    one_device: Cluster, tmp_path: Path, given: Any, message: str
) -> None:
    with pytest.raises((InputError, DataError), match=re.escape(message)):
        on(
            one_device,
            **{"model": three_outputs, "data": (ROWS, TARGETS), "model_dir": str(tmp_path)} | given,
        )
