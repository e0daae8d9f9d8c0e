"""Optimizers against their papers, and schedules against their drawings; over eight replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.checkpoints.model_description import describe_model
from tpu_training.loop.optimizers.create import create_optimizer
from tpu_training.loop.optimizers.schedules import create_schedule
from tpu_training.models.params import Params, build_params
from tpu_training.models.registry import load_model
from tpu_training.models.spec import DataSpec

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

Array = npt.NDArray[np.float64]
RATE = 0.1
START = np.array([[1.0, -2.0], [0.5, 4.0]])
BIAS = np.array([3.0, -1.0])


def optimise(cluster: Cluster, steps: int = 5, **settings: Any) -> tuple[Array, Array]:
    """Follow the gradient 2 * w of a kernel and of a bias."""
    params = Params(learning_rate=RATE, schedule="constant", warmup_fraction=0, **settings)
    with cluster.strategy.scope():
        variables = [tf.Variable(START, dtype=tf.float32), tf.Variable(BIAS, dtype=tf.float32)]
        optimizer = create_optimizer(params, variables, create_schedule(params, steps))

    def step(number: tf.Tensor) -> None:
        cluster.strategy.run(lambda: optimizer.apply([2.0 * v for v in variables], number))

    compiled = tf.function(step)
    for number in range(steps):
        compiled(tf.constant(number, tf.int64))
    for variable in variables:
        copies = [copy.numpy() for copy in variable.values]
        assert all(np.array_equal(copy, copies[0]) for copy in copies)
    return variables[0].numpy(), variables[1].numpy()


def adam(weights: Array, decay: float, steps: int = 5) -> Array:
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for count in range(1, steps + 1):
        gradient = 2.0 * weights
        first = 0.9 * first + 0.1 * gradient
        second = 0.99 * second + 0.01 * gradient**2
        mean, square = first / (1 - 0.9**count), second / (1 - 0.99**count)
        weights = weights - RATE * (mean / np.sqrt(square) + decay * weights)
    return weights


def sgd(weights: Array, decay: float, steps: int = 5, trust: float = 0.0) -> Array:
    velocity = np.zeros_like(weights)
    for _ in range(steps):
        gradient = 2.0 * weights
        norms = np.linalg.norm(weights), np.linalg.norm(gradient)
        scale = trust * norms[0] / (norms[1] + decay * norms[0]) if trust else 1.0
        velocity = 0.9 * velocity + gradient + decay * weights
        weights = weights - RATE * scale * velocity
    return weights


def nesterov(weights: Array, decay: float, steps: int = 5) -> Array:
    velocity = np.zeros_like(weights)
    for _ in range(steps):
        gradient = 2.0 * weights + decay * weights
        velocity = 0.9 * velocity + gradient
        weights = weights - RATE * (0.9 * velocity + gradient)
    return weights


def lion(weights: Array, decay: float, steps: int = 5) -> Array:
    mean = np.zeros_like(weights)
    for _ in range(steps):
        gradient = 2.0 * weights
        direction = np.sign(0.9 * mean + 0.1 * gradient)
        mean = 0.99 * mean + 0.01 * gradient
        weights = weights - RATE * (direction + decay * weights)
    return weights


def muon(weights: Array, decay: float, steps: int = 5) -> Array:
    momentum = np.zeros_like(weights)
    for _ in range(steps):
        gradient = 2.0 * weights
        momentum = 0.9 * momentum + gradient
        x = gradient + 0.9 * momentum
        x = x / np.linalg.norm(x)
        for _ in range(5):
            square = x @ x.T
            x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
        weights = weights - RATE * (0.2 * 2**0.5 * x + decay * weights)
    return weights


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(
    ("name", "kernel", "bias"),
    [
        ("adam", adam, adam),
        ("sgd", sgd, sgd),
        ("nesterov", nesterov, nesterov),
        ("lion", lion, lion),
        ("muon", muon, adam),
        ("lars", lambda w, decay: sgd(w, decay, trust=0.001), sgd),
    ],
)
def test_an_optimizer_follows_its_paper_and_decays_no_bias(
    cluster: Cluster,
    name: str,
    kernel: Callable[[Array, float], Array],
    bias: Callable[[Array, float], Array],
    decay: float,
) -> None:
    weights, offsets = optimise(cluster, optimizer=name, weight_decay=decay)
    assert weights == pytest.approx(kernel(START, decay), rel=1e-4, abs=1e-6)
    assert offsets == pytest.approx(bias(BIAS, 0.0), rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["Lion", "Muon", "SGD"])
def test_an_optimizer_does_what_that_of_keras_does(one_device: Cluster, name: str) -> None:
    keras = pytest.importorskip("keras")
    if not hasattr(keras.optimizers, name):
        pytest.skip(f"this Keras has no {name}")
    variable_of_keras = getattr(keras, "Variable", tf.Variable)  # Keras 2 has TensorFlow's own.
    settings: dict[str, Any] = {
        "Lion": {"beta_1": 0.9, "beta_2": 0.99},
        "Muon": {"momentum": 0.9, "adam_beta_2": 0.99},
        "SGD": {"momentum": 0.9, "nesterov": True},
    }[name]
    if name == "Muon":
        settings |= {"weight_decay": None, "adam_weight_decay": None}
    ours = {"SGD": "nesterov"}.get(name, name.lower())
    variables = [tf.Variable(START[:, :1], dtype=tf.float32), tf.Variable(BIAS, dtype=tf.float32)]
    theirs = [variable_of_keras(variable.numpy()) for variable in variables]
    params = Params(learning_rate=RATE, schedule="constant", warmup_fraction=0, optimizer=ours)
    mine = create_optimizer(params, variables, create_schedule(params, 3))
    other = getattr(keras.optimizers, name)(learning_rate=RATE, **settings)
    for step in range(3):
        gradients = [2.0 * variable for variable in variables]
        other.apply_gradients(zip(gradients, theirs, strict=True))
        mine.apply(gradients, tf.constant(step, tf.int64))
    for variable, expected in zip(variables, theirs, strict=True):
        assert variable.numpy() == pytest.approx(expected.numpy(), rel=1e-4)


def test_a_matrix_under_muon_has_no_second_moment(one_device: Cluster) -> None:
    shapes = {"kernel": (3, 4), "table": (5, 4), "bias": (4,), "conv": (3, 3, 1, 4)}
    variables = [tf.Variable(tf.zeros(shape), name=name) for name, shape in shapes.items()]
    params = Params(optimizer="muon")
    optimizer = create_optimizer(params, variables, create_schedule(params, 3))
    assert [len(slots) for slots in optimizer.slots] == [1, 2, 2, 2]


def test_clipping_shortens_all_gradients_together_to_the_norm(cluster: Cluster) -> None:
    weights, offsets = optimise(cluster, 1, optimizer="sgd", clip_norm=1.5)
    norm = np.sqrt((4 * START**2).sum() + (4 * BIAS**2).sum())
    assert weights == pytest.approx(START - RATE * 2 * START * 1.5 / norm, rel=1e-5)
    assert offsets == pytest.approx(BIAS - RATE * 2 * BIAS * 1.5 / norm, rel=1e-5)
    unclipped, _ = optimise(cluster, 1, optimizer="sgd", clip_norm=1000.0)
    assert unclipped == pytest.approx(START - RATE * 2 * START, rel=1e-5)


def rates(**settings: Any) -> Array:
    rate = create_schedule(Params(learning_rate=0.5, **settings), steps=100)
    return np.array([float(rate(tf.constant(step))) for step in range(100)])


@pytest.mark.parametrize("name", ["constant", "cosine", "linear", "exponential"])
def test_every_schedule_rises_to_its_peak_in_equal_steps(cluster: Cluster, name: str) -> None:
    rising = rates(schedule=name, warmup_fraction=0.2)[:20]
    assert rising == pytest.approx(0.5 / 20 * np.arange(1, 21))


@pytest.mark.parametrize(
    ("name", "quarter", "half", "last"),
    [
        ("constant", 0.5, 0.5, 0.5),
        ("cosine", 0.25 * (1 + np.cos(np.pi / 4)), 0.25, 0.0),
        ("linear", 0.375, 0.25, 0.0),
        ("exponential", 0.5 * 0.1, 0.5 * 0.1**2, 0.5 * 0.1**4),
    ],
)
def test_a_schedule_falls_as_its_name_says(
    cluster: Cluster, name: str, quarter: float, half: float, last: float
) -> None:
    values = rates(schedule=name, warmup_fraction=0, decay_interval=0.25)
    assert (values[24], values[49], values[99]) == pytest.approx(
        (quarter, half, last), rel=0.1, abs=1e-6
    )
    assert all(np.diff(values) <= 0)


def test_the_schedule_with_steps_falls_only_where_an_interval_ends(cluster: Cluster) -> None:
    values = rates(schedule="step", warmup_fraction=0, decay_interval=0.3, decay_factor=0.2)
    assert np.flatnonzero(np.diff(values)).tolist() == [29, 59, 89]
    assert values[[0, 30, 60, 90]] == pytest.approx([0.5, 0.1, 0.02, 0.004])


def test_an_optimizer_that_is_not_the_models_own_has_its_own_defaults() -> None:
    kind = load_model("resnet").params
    plain = build_params({}, (), kind=kind)
    adam = build_params({"optimizer": "adam"}, (), kind=kind)
    given = build_params({}, [("optimizer", "adam"), ("learning_rate", "0.1")], kind=kind)
    own = build_params({"optimizer": "sgd"}, (), kind=kind)
    assert (plain.learning_rate, plain.weight_decay) == (0.1, 1e-4)
    assert (adam.learning_rate, adam.weight_decay) == (0.001, 0.05)
    assert (given.learning_rate, given.weight_decay) == (0.1, 0.05)
    assert own == plain
    spec = DataSpec("image", (8, 8, 1), "uint8", 3)
    description = describe_model(load_model("resnet"), given, spec, "data")
    assert build_params(description.params, (), kind=kind) == given
