"""Optimizers against their papers, and schedules against their drawings; over eight replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.checkpoints.model_description import describe_model
from tpu_training.loop.optimizers import (
    Choice,
    choose_variables,
    compiled_optimizer,
    create_optimizer,
    create_schedule,
)
from tpu_training.models.model import create_model
from tpu_training.models.params import KerasParams, Params, build_params
from tpu_training.models.registry import ModelDefinition, load_model
from tpu_training.models.spec import DataSpec

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

Array = npt.NDArray[np.float64]
RATE, STEPS = 0.1, 5
START = np.array([[1.0, -2.0], [0.5, 4.0]])
BIAS = np.array([3.0, -1.0])


def choice(**variables: tf.Variable) -> Choice:
    """All of `variables`, by their paths, where `__` stands for a part within another."""
    paths = [name.replace("__", "/") for name in variables]
    return Choice(list(variables.values()), [1.0] * len(paths), frozenset(), paths)


def slope(weights: Any) -> Any:
    """The gradient that is followed: its part of the weights differs with them."""
    return 2.0 * weights + weights**3 / 8.0


def rate_of(step: int) -> float:
    return RATE * (1.0 - step / (STEPS - 1.0))


def optimise(cluster: Cluster, steps: int = STEPS, **settings: Any) -> tuple[Array, Array]:
    """Follow the slope of a kernel and of a bias while the rate falls to 0."""
    params = Params(learning_rate=RATE, schedule="linear", warmup_fraction=0, **settings)
    with cluster.strategy.scope():
        variables = [tf.Variable(START, dtype=tf.float32), tf.Variable(BIAS, dtype=tf.float32)]
        chosen = choice(kernel=variables[0], bias=variables[1])
        optimizer = create_optimizer(params, chosen, create_schedule(params, STEPS))

    def step(number: tf.Tensor) -> None:
        cluster.strategy.run(lambda: optimizer.apply([slope(v) for v in variables], number))

    compiled = tf.function(step)
    for number in range(steps):
        compiled(tf.constant(number, tf.int64))
    for variable in variables:
        copies = [copy.numpy() for copy in variable.values]
        assert all(np.array_equal(copy, copies[0]) for copy in copies)
    return variables[0].numpy(), variables[1].numpy()


def adam(weights: Array, decay: float) -> Array:
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(STEPS):
        gradient = slope(weights)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        mean, square = first / (1 - 0.9 ** (step + 1)), second / (1 - 0.999 ** (step + 1))
        weights = weights - rate_of(step) * (mean / np.sqrt(square) + decay * weights)
    return weights


def sgd(weights: Array, decay: float) -> Array:
    velocity = np.zeros_like(weights)
    for step in range(STEPS):
        velocity = 0.9 * velocity + slope(weights) + decay * weights
        weights = weights - rate_of(step) * velocity
    return weights


def lars(weights: Array, decay: float, trust: float | None = 0.001) -> Array:
    """Algorithm 1 of arXiv:1708.03888; without `trust`, what is left of it for a bias."""
    velocity = np.zeros_like(weights)
    for step in range(STEPS):
        gradient = slope(weights)
        norms = np.linalg.norm(weights), np.linalg.norm(gradient)
        local = trust * norms[0] / (norms[1] + decay * norms[0]) if trust else 1.0
        velocity = 0.9 * velocity + rate_of(step) * local * (gradient + decay * weights)
        weights = weights - velocity
    return weights


def nesterov(weights: Array, decay: float) -> Array:
    velocity = np.zeros_like(weights)
    for step in range(STEPS):
        gradient = slope(weights) + decay * weights
        velocity = 0.9 * velocity + gradient
        weights = weights - rate_of(step) * (0.9 * velocity + gradient)
    return weights


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(
    ("name", "kernel", "bias"),
    [
        ("adam", adam, adam),
        ("sgd", sgd, sgd),
        ("nesterov", nesterov, nesterov),
        ("lars", lars, lambda b, decay: lars(b, decay, trust=None)),
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


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_an_optimizer_does_what_that_of_keras_does(one_device: Cluster, name: str) -> None:
    keras = pytest.importorskip("keras")
    variable_of_keras = getattr(keras, "Variable", tf.Variable)  # Keras 2 has TensorFlow's own.
    settings: dict[str, Any] = {"momentum": 0.9, "nesterov": True} if name == "SGD" else {}
    ours = {"SGD": "nesterov"}.get(name, name.lower())
    variables = [tf.Variable(START[:, :1], dtype=tf.float32), tf.Variable(BIAS, dtype=tf.float32)]
    theirs = [variable_of_keras(variable.numpy()) for variable in variables]
    constant = {"learning_rate": RATE, "schedule": "constant", "warmup_fraction": 0}
    params = build_params({"optimizer": ours, **constant}, ())
    chosen = choice(kernel=variables[0], bias=variables[1])
    mine = create_optimizer(params, chosen, create_schedule(params, 3))
    other = getattr(keras.optimizers, name)(learning_rate=RATE, **settings)
    for step in range(3):
        gradients = [slope(variable) for variable in variables]
        other.apply_gradients(zip(gradients, theirs, strict=True))
        mine.apply(gradients, tf.constant(step, tf.int64))
    for variable, expected in zip(variables, theirs, strict=True):
        assert variable.numpy() == pytest.approx(expected.numpy(), rel=1e-4)


def lamb(weights: Array, decay: float) -> Array:
    """Algorithm 2 of arXiv:1904.00962 without decay; Keras' decay is outside of the trust ratio."""
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, STEPS + 1):
        gradient = slope(weights)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        mean, square = first / (1 - 0.9**step), second / (1 - 0.999**step)
        weights = weights * (1 - RATE * decay)
        change = mean / (np.sqrt(square) + 1e-7)
        trust = np.linalg.norm(weights) / np.linalg.norm(change)
        weights = weights - RATE * trust * change
    return weights


def adafactor(weights: Array, decay: float) -> Array:
    """Algorithms 4 and 5 of arXiv:1804.04235, with the rate as an upper bound."""
    rows = columns = second = np.zeros(())
    for step in range(1, STEPS + 1):
        gradient = slope(weights)
        weights = weights * (1 - RATE * decay)
        square, kept = gradient**2 + 1e-30, 1 - step**-0.8
        second = kept * second + (1 - kept) * square
        if weights.ndim > 1:
            rows = kept * rows + (1 - kept) * square.sum(axis=1)
            columns = kept * columns + (1 - kept) * square.sum(axis=0)
            second = np.outer(rows, columns) / rows.sum()
        change = gradient / np.sqrt(second)
        change /= max(1.0, np.sqrt(np.mean(change**2)))
        size = max(1e-3, np.sqrt(np.mean(weights**2)))
        weights = weights - size * min(RATE, step**-0.5) * change
    return weights


@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize(("name", "reference"), [("Lamb", lamb), ("Adafactor", adafactor)])
def test_an_optimizer_of_keras_follows_its_paper_in_the_loop(
    one_device: Cluster, name: str, reference: Callable[[Array, float], Array], decay: float
) -> None:
    keras = tf.keras
    if not hasattr(keras.optimizers, name) or not hasattr(keras, "Variable"):
        pytest.skip(f"this Keras has no {name}")

    def compiled(*_: object) -> Any:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
        model.compile(getattr(keras.optimizers, name)(RATE, weight_decay=decay or None))
        return model

    definition = ModelDefinition("k", KerasParams, compiled, own=True)
    params, spec = KerasParams(precision="float32"), DataSpec("array", (2,), "float32", 2)
    model = create_model(definition, params, spec, 0)
    chosen = choose_variables(params, model).trained
    offsets, weights = sorted(chosen, key=lambda variable: variable.shape.rank)
    weights.assign(START)
    offsets.assign(BIAS)
    optimizer = compiled_optimizer(params, model, [weights, offsets])
    assert optimizer
    for step in range(STEPS):
        optimizer.apply([slope(weights), slope(offsets)], tf.constant(step, tf.int64))
    assert weights.numpy() == pytest.approx(reference(START, decay), rel=1e-4)
    assert offsets.numpy() == pytest.approx(reference(BIAS, decay), rel=1e-4)


def keras_text_model(*_: object) -> Any:
    keras = tf.keras
    ids = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(9, 4)(ids)
    x = keras.layers.MultiHeadAttention(2, 3)(x, x)
    x = keras.layers.LayerNormalization(axis=(1, 2))(x)
    x = keras.layers.Dense(4)(keras.layers.Flatten()(x))
    return keras.Model(ids, keras.layers.Dense(3)(x))


def test_biases_and_normalisations_of_keras_do_not_decay_whatever_their_rank(
    one_device: Cluster,
) -> None:
    if not hasattr(tf.keras, "Variable"):
        pytest.skip("own models need Keras 3")
    definition = ModelDefinition("k", Params, keras_text_model, own=True)
    spec = DataSpec("text", (6,), "int32", 3, vocabulary=9)
    model = create_model(definition, Params(precision="float32"), spec, 0)
    params = Params(optimizer="sgd", weight_decay=0.5, schedule="constant", warmup_fraction=0)
    chosen = choose_variables(params, model)
    for variable in chosen.trained:
        variable.assign(tf.ones_like(variable))
    named = dict(zip(chosen.paths, chosen.trained, strict=True))
    assert len(named["multi_head_attention/query/bias"].shape) == 2
    optimizer = create_optimizer(params, chosen, create_schedule(params, 3))
    optimizer.apply([tf.zeros_like(v) for v in chosen.trained], tf.constant(0, tf.int64))
    kept = {path.rpartition("/")[2] for path, v in named.items() if np.all(v.numpy() == 1.0)}
    decayed = {path.rpartition("/")[2] for path in chosen.paths} - kept
    assert (kept, decayed) == ({"bias", "gamma", "beta"}, {"kernel", "embeddings"})


def test_clipping_shortens_all_gradients_together_to_the_norm(cluster: Cluster) -> None:
    weights, offsets = optimise(cluster, 1, optimizer="sgd", clip_norm=1.5)
    norm = np.sqrt((slope(START) ** 2).sum() + (slope(BIAS) ** 2).sum())
    assert weights == pytest.approx(START - RATE * slope(START) * 1.5 / norm, rel=1e-5)
    assert offsets == pytest.approx(BIAS - RATE * slope(BIAS) * 1.5 / norm, rel=1e-5)
    unclipped, _ = optimise(cluster, 1, optimizer="sgd", clip_norm=1000.0)
    assert unclipped == pytest.approx(START - RATE * slope(START), rel=1e-5)


def rates(**settings: Any) -> Array:
    rate = create_schedule(Params(learning_rate=0.5, **settings), steps=100)
    return np.array([float(rate(tf.constant(step))) for step in range(100)])


@pytest.mark.parametrize("name", ["constant", "cosine", "linear"])
def test_every_schedule_rises_to_its_peak_in_equal_steps(cluster: Cluster, name: str) -> None:
    rising = rates(schedule=name, warmup_fraction=0.2)[:20]
    assert rising == pytest.approx(0.5 / 20 * np.arange(1, 21))


@pytest.mark.parametrize(
    ("name", "quarter", "half", "last"),
    [
        ("constant", 0.5, 0.5, 0.5),
        ("cosine", 0.25 * (1 + np.cos(np.pi / 4)), 0.25, 0.0),
        ("linear", 0.375, 0.25, 0.0),
    ],
)
def test_a_schedule_falls_as_its_name_says(
    cluster: Cluster, name: str, quarter: float, half: float, last: float
) -> None:
    values = rates(schedule=name, warmup_fraction=0)
    assert (values[24], values[49], values[99]) == pytest.approx(
        (quarter, half, last), rel=0.1, abs=1e-6
    )
    assert all(np.diff(values) <= 0)


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


@pytest.mark.parametrize(
    ("model", "optimizer", "expected"),
    [
        ("bert", "adam", {"momentum": 0.9, "squares_momentum": 0.999}),
        # With a trust of 0.001 a rate of 0.1 would train nothing.
        ("resnet", "lars", {"learning_rate": 10.0}),
        ("bert", "lars", {"learning_rate": 1.0}),
        ("mnist_cnn", "lars", {"learning_rate": 3.2}),
    ],
)
def test_the_defaults_of_an_optimizer_are_those_of_its_paper(
    model: str, optimizer: str, expected: dict[str, float]
) -> None:
    params = build_params({"optimizer": optimizer}, (), kind=load_model(model).params)
    assert {name: getattr(params, name) for name in expected} == expected
    assert Params().squares_momentum == 0.999
