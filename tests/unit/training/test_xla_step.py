"""Every option of a step, run through XLA: what a TPU gets is executed, not only traced."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.manifest import RAW, TOKENS, Manifest
from tpu_training.loop.evaluation import create_replica_evaluation
from tpu_training.loop.state import TrainState, create_train_state
from tpu_training.loop.step import Replica, create_replica_step, create_step_sums
from tpu_training.models import layers
from tpu_training.models.layers import Conv2D, normalise
from tpu_training.models.params import KerasParams, Params, build_params
from tpu_training.models.registry import BUILT_IN, ModelDefinition, load_model
from tpu_training.models.spec import DataSpec
from tpu_training.models.step_context import step_context
from tpu_training.tasks import built_in_tasks, with_task

pytestmark = pytest.mark.training

BATCH = 4
IMAGES = DataSpec("image", (8, 8, 1), "uint8", 3)
TEXTS = DataSpec("text", (6,), "int32", 3, vocabulary=9)
# Their numbers are drawn by another generator under XLA, or rounded otherwise.
NOT_REPEATED = {"mixup", "cutmix", "dropout", "precision"}
# What is no part of a step: its size and course, input, files, devices, the host's work.
ELSEWHERE = {
    *("epochs", "global_batch_size", "evaluation_batch_size", "steps_per_loop", "warmup_fraction"),
    *("checkpoint_interval", "evaluation_interval", "validation_fraction", "patience", "seed"),
    *("snapshot_interval", "profile_steps", "keep_checkpoints", "image_size", "augmentation"),
    *("cache", "order", "backend", "local_devices", "hang_timeout", "overfit_batches"),
    *("connect_tries", "connect_interval", "init_from", "init_map", "callback"),
    *("tpu_type", "steps", "tokens", "limit_batches", "eager"),
    "checkpoint_weights",
}
# Numbers that make no other program.
NUMBERS = {
    *("learning_rate", "momentum", "squares_momentum"),
    *("layers", "hidden_size", "heads"),
}


class PerPixel(tf.Module):  # type: ignore[misc]
    """A class for each pixel."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__()
        self.conv = Conv2D(3, spec.shape[-1], spec.classes, seed=1)

    def __call__(self, images: tf.Tensor, training: bool) -> tf.Tensor:
        return self.conv(normalise(images, tf.float32))


def keras_net(params: Params, spec: DataSpec, seed: int) -> Any:
    keras, layers = tf.keras, tf.keras.layers
    inputs = keras.Input(spec.shape)
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, kernel_regularizer="l2")(inputs))
    x = layers.Flatten()(layers.ReLU()(x))
    model = keras.Model(inputs, layers.Dense(spec.classes, activation="softmax")(x))
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


OWN = {
    "per_pixel": ModelDefinition("per_pixel", Params, lambda p, s, _: PerPixel(s), own=True),
    "keras": ModelDefinition("keras", KerasParams, keras_net, own=True),
}


@dataclass(frozen=True)
class Case:
    """A model with options, for data of `spec` and perhaps a task that they do not name."""

    model: str
    options: dict[str, Any]
    spec: DataSpec = IMAGES
    task: str = "classification"

    def __str__(self) -> str:
        options = (f"{name}={value}" for name, value in self.options.items())
        return " ".join([self.model, self.task, *options])

    @property
    def repeats(self) -> bool:
        return not NOT_REPEATED & self.options.keys()


CASES = [
    Case("mnist_cnn", {"optimizer": "adam", "weight_decay": 0.1, "clip_norm": 0.1}),
    Case("mnist_cnn", {"optimizer": "lars", "gradient_accumulation": 2, "label_smoothing": 0.1}),
    Case("mnist_cnn", {"optimizer": "adam", "ema_decay": 0.9, "freeze": "conv_1"}),
    Case("mnist_cnn", {"optimizer": "sgd", "rate_factors": "dense_2=3"}),
    Case("mnist_cnn", {"optimizer": "nesterov", "schedule": "linear"}),
    Case("mnist_cnn", {"optimizer": "lars", "precision": "bfloat16"}),
    Case("mnist_cnn", {"mixup": 0.2, "cutmix": 1.0, "schedule": "constant"}),
    Case("mnist_cnn", {}, replace(IMAGES, targets="labels"), "multi_label"),
    Case("mnist_cnn", {}, replace(IMAGES, targets="numbers"), "regression"),
    Case("resnet", {"depth": 8, "gradient_accumulation": 2, "remat": "blocks", "ema_decay": 0.9}),
    Case("resnet", {"depth": 8, "batch_norm": "all_replicas", "mixup": 0.2, "width": 2}),
    Case("resnet", {"depth": 18, "precision": "bfloat16"}),
    Case("bert", {"gradient_accumulation": 2, "remat": "blocks", "dropout": 0.5}, TEXTS),
    Case("bert", {"optimizer": "nesterov"}, TEXTS, "causal_lm"),
    Case("bert", {"precision": "bfloat16", "dropout": 0.5}, TEXTS, "masked_lm"),
    Case("bert", {}, replace(TEXTS, targets="token_classes"), "token_classification"),
    Case("per_pixel", {}, replace(IMAGES, targets="mask"), "segmentation"),
    Case("keras", {"gradient_accumulation": 2}),
    Case("keras", {"optimizer": "lars", "ema_decay": 0.9, "freeze": "conv2d*"}),
]
KINDS = [load_model(name).params for name in BUILT_IN]
SMALL = {"bert": {"layers": 1, "hidden_size": 8, "dropout": 0.0}}


def created(case: Case) -> tuple[TrainState, Params]:
    definition = OWN.get(case.model) or load_model(case.model)
    given = {"global_batch_size": BATCH, "evaluation_batch_size": BATCH}
    options = given | SMALL.get(case.model, {}) | case.options
    params = build_params(options, (), (), definition.params)
    encoding = RAW if case.spec.kind == "image" else TOKENS
    cluster = Cluster(tf.distribute.get_strategy(), "", None, has_tpu=False)
    described = Manifest("d", case.spec, encoding, {})
    return create_train_state(cluster, with_task(definition, case.task), params, described, 9), (
        params
    )


def batch(spec: DataSpec) -> tuple[tf.Tensor, tf.Tensor]:
    random = np.random.default_rng(0)
    high = 256 if spec.kind == "image" else spec.vocabulary
    features = random.integers(0, high, (BATCH, *spec.shape))
    targets = random.integers(0, 2, (BATCH, *spec.target_shape))
    return tf.constant(features, spec.dtype), tf.constant(targets, spec.target_dtype)


def take_steps(case: Case) -> Iterator[list[npt.NDArray[Any]]]:
    """The weights; then what a step and an evaluation make of them, with XLA and without."""
    variables: list[tf.Variable] = []

    def create(next_creator: Any, **options: Any) -> tf.Variable:
        variables.append(next_creator(**options))
        return variables[-1]

    with tf.variable_creator_scope(create):
        state, params = created(case)
        sums = create_step_sums(state)
    replica = Replica(tf.constant(0), 1, lambda values: values)
    train = create_replica_step(params, state, sums, lambda: replica)
    evaluate = create_replica_evaluation(params, state)

    def step(features: tf.Tensor, targets: tf.Tensor) -> tuple[tf.Tensor, ...]:
        train(features, targets)
        if state.average:
            state.average.exchange()
        return evaluate(features, targets, tf.ones((BATCH,)))

    before = [variable.numpy() for variable in variables]
    yield [variable.numpy() for variable in state.variables]
    traced = tf.function(step, autograph=False).get_concrete_function(*batch(case.spec))
    for run in (tf.function(lambda *rows: traced(*rows), jit_compile=True), traced):
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        numbers, counts = run(*batch(case.spec))
        assert counts[0] == BATCH
        assert state.step.numpy() == 1
        yield [*(v.numpy() for v in state.variables), sums.numbers.numpy(), numbers.numpy()]


@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_step_and_an_evaluation_run_through_xla_and_do_what_they_do_without(case: Case) -> None:
    if case.model == "keras" and not hasattr(tf.keras, "Variable"):
        pytest.skip("own models need Keras 3")
    steps = take_steps(case)
    before, after = next(steps), next(steps)
    assert all(np.isfinite(value).all() for value in after)
    assert any((new != old).any() for old, new in zip(before, after, strict=False))
    if case.repeats:
        for found, expected in zip(after, next(steps), strict=True):
            np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.usefixtures("quick_xla")
@pytest.mark.parametrize(("task", "smoothing"), [("causal_lm", 0.2), ("masked_lm", 0.0)])
def test_logits_in_pieces_give_the_losses_figures_and_gradients_of_whole_ones(
    monkeypatch: pytest.MonkeyPatch, task: str, smoothing: float
) -> None:
    given = {"layers": 1, "hidden_size": 8, "dropout": 0.0, "label_smoothing": smoothing}
    definition = with_task(load_model("bert"), task)
    params = build_params(given, (), (), definition.params)
    spec = DataSpec("text", (30,), "int32", 0, 40, targets="nothing")
    cluster = Cluster(tf.distribute.get_strategy(), "", None, has_tpu=False)
    state = create_train_state(cluster, definition, params, Manifest("d", spec, TOKENS, {}), 9)
    ids = tf.constant(
        np.random.default_rng(1).integers(1, 40, (3, 30)) * (np.arange(30) < [[30], [11], [0]])
    )
    weights = tf.constant([0.5, 2.0, 1.0])

    def answer() -> Any:
        with step_context(tf.constant([3, 4])), tf.GradientTape() as tape:
            inputs, targets = state.prepare(tf.cast(ids, tf.int32), None, False)
            outputs = state.scored(inputs, training=True)
            losses = state.losses(outputs, targets, params)
            loss = tf.reduce_sum(losses * weights)
        gradients = tape.gradient(loss, state.variables)
        figures = state.evaluated.count(outputs, targets, tf.constant([1.0, 1.0, 0.0]))
        return losses, *figures, *map(tf.convert_to_tensor, gradients)

    whole = tf.function(answer, autograph=False)()
    # A place each, and four pieces of 8, which are more than the 29 or 30 places.
    for most, compiled in ((1, False), (4000, True)):
        monkeypatch.setattr(layers, "_MOST_LOGITS", most)
        pieces = tf.function(answer, autograph=False, jit_compile=compiled)
        for found, expected in zip(pieces(), whole, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_every_model_task_and_step_option_is_covered() -> None:
    assert {case.model for case in CASES} == {*BUILT_IN, *OWN}
    assert {case.task for case in CASES} == set(built_in_tasks())
    tried = {(name, value) for case in CASES for name, value in case.options.items()}
    kinds = {definition.params for definition in OWN.values()}
    options = [o for kind in {*kinds, *KINDS} for o in fields(kind) if o.name not in ELSEWHERE]
    # Without being asked for, a CPU takes float32.
    tried |= {(option.name, option.default) for option in options} | {("precision", "float32")}
    for option in options:
        values = {value for name, value in tried if name == option.name}
        assert values >= {*option.metadata["choices"]}, option.name
        assert len(values) > 1 or option.name in NUMBERS, option.name
