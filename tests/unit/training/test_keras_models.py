"""A Keras model in a file trains as it is: its updates, seeds, loss, optimizer, export."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow import keras

from tests.unit.training import pages
from tests.unit.training.fake_tpu import bytes_that_leave, on_tpu
from tests.unit.training.test_tpu_models import CLOCK, OF_HOST, OF_TPUS, PRODUCTS, body
from tpu_training.compile.lowering import accepts
from tpu_training.data.data_set import open_data
from tpu_training.data.manifest import RAW, Manifest, stored_spec
from tpu_training.data.pipeline import training_batches
from tpu_training.errors import InputError, translate
from tpu_training.loop.graph import operations
from tpu_training.loop.state import TrainState, create_train_state
from tpu_training.loop.step import create_replica_step, create_step_sums
from tpu_training.loop.train import create_train_loop
from tpu_training.models.model import variable_paths
from tpu_training.models.params import build_params
from tpu_training.models.registry import load_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

KERAS = pytest.mark.skipif(not hasattr(keras, "StatelessScope"), reason="own models need Keras 3")
pytestmark = [pytest.mark.training, KERAS]

SHAPE, CLASSES, BATCH = (6, 6, 1), 3, 32
HEAD = """from tensorflow import keras
from tensorflow.keras import layers
"""
# Batch normalisation, dropout, a custom layer and a penalty, in the form that Keras' guides call
# subclassed: it has no variables before it has seen an input.
SUBCLASSED = (
    HEAD
    + """

class Scale(layers.Layer):
    def build(self, shape):
        self.factor = self.add_weight(shape=(shape[-1],), initializer="ones", name="factor")

    def call(self, x):
        return x * self.factor


class Net(keras.Model):
    def __init__(self, classes):
        super().__init__()
        self.conv = layers.Conv2D(4, 3, strides=2, kernel_regularizer="l2")
        self.norm = layers.BatchNormalization()
        self.scale = Scale()
        self.drop = layers.Dropout(0.3)
        self.flat = layers.Flatten()
        self.out = layers.Dense(classes, activation="softmax")

    def call(self, x, training=False):
        x = self.norm(self.conv(x / 255.0), training=training)
        return self.out(self.flat(self.drop(self.scale(x), training=training)))


def create_model(spec):
    model = Net(spec.classes)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model
"""
)
FUNCTIONAL = (
    HEAD
    + """

def create_model(params, spec):
    inputs = keras.Input(spec.shape)
    x = layers.BatchNormalization(momentum=0.8)(layers.Conv2D(4, 3, use_bias=False)(inputs))
    x = layers.Flatten()(layers.ReLU()(x))
    outputs = layers.Dense(spec.classes, kernel_regularizer="l2"{end})(x)
    model = keras.Model(inputs, outputs)
    {compile}
    return model
"""
)


def manifest(shape: tuple[int, ...] = SHAPE, classes: int = CLASSES) -> Manifest:
    return Manifest("d", stored_spec(RAW, shape, classes), RAW, {})


def create(
    cluster: Cluster, path: Path, text: str, described: Manifest | None = None, **values: object
) -> TrainState:
    path.write_text(text)
    definition = load_model(str(path))
    given = {"global_batch_size": BATCH, **values}
    params = build_params(given, (), (), definition.params)
    return create_train_state(cluster, definition, params, described or manifest(), steps=5)


def batches(count: int, classes: int = CLASSES) -> Iterator[tuple[Any, Any]]:
    random = np.random.default_rng(0)
    for _ in range(count):
        yield (
            random.integers(0, 256, (BATCH, *SHAPE)).astype(np.uint8),
            random.integers(0, classes, BATCH).astype(np.int32),
        )


def train(cluster: Cluster, state: TrainState, count: int, **values: object) -> None:
    """Do `count` steps; every replica takes its share of a batch."""
    params = build_params({"global_batch_size": BATCH, **values}, (), ())
    with cluster.strategy.scope():
        sums = create_step_sums(state)
    step = create_replica_step(params, state, sums)
    run = tf.function(lambda *batch: cluster.strategy.run(step, batch), autograph=False)
    share = BATCH // cluster.replicas
    for batch in batches(count):
        run(
            *(
                cluster.strategy.experimental_distribute_values_from_function(
                    lambda context, whole=whole: tf.constant(
                        whole[context.replica_id_in_sync_group * share :][:share]
                    )
                )
                for whole in batch
            )
        )


def keras_of(state: TrainState) -> Any:
    return state.model.keras()


def copy_of(path: Path, state: TrainState) -> Any:
    """The same Keras model outside of the trainer, with the weights of `state`."""
    definition = load_model(str(path))
    twin = definition.create_model(definition.params(), manifest().spec, 0)
    twin(np.zeros((1, *SHAPE), np.float32))
    twin.set_weights(keras_of(state).get_weights())
    return twin


@pytest.mark.parametrize(
    "optimizer",
    [
        "SGD(0.05, momentum=0.9, nesterov=True, clipnorm=0.1)",
        "Adam(keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5), weight_decay=0.1)",
        "RMSprop(0.01, global_clipnorm=0.5)",
        "Lamb(0.01)",
        "Adafactor(0.01)",
    ],
)
def test_it_trains_as_fit_does(one_device: Cluster, tmp_path: Path, optimizer: str) -> None:
    """Loss, penalty, schedule, decay, clipping and batch normalisation are those of Keras."""
    compiled = f"model.compile(keras.optimizers.{optimizer}, 'sparse_categorical_crossentropy')"
    text = FUNCTIONAL.format(end=', activation="softmax"', compile=compiled)
    state = create(one_device, tmp_path / "own.py", text)
    twin = copy_of(tmp_path / "own.py", state)
    train(one_device, state, 3)
    for features, labels in batches(3):
        twin.train_on_batch(features.astype(np.float32), labels)
    for ours, theirs in zip(keras_of(state).get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-5)


def test_replicas_and_parts_average_what_batch_normalisation_saw(
    cluster: Cluster, tmp_path: Path
) -> None:
    compiled = "model.compile(keras.optimizers.SGD(0.1, momentum=0.9), 'categorical_crossentropy')"
    text = FUNCTIONAL.format(end=', activation="softmax"', compile=compiled)
    state = create(cluster, tmp_path / "own.py", text, gradient_accumulation=2)
    twin = copy_of(tmp_path / "own.py", state)
    conv, norm = (twin.get_layer(index=index) for index in (1, 2))
    (features, _), parts = next(batches(1)), 2 * cluster.replicas
    seen = [
        np.asarray(conv(part.astype(np.float32))).mean(axis=(0, 1, 2))
        for part in features.reshape(parts, -1, *SHAPE)
    ]
    train(cluster, state, 1, gradient_accumulation=2)
    np.testing.assert_allclose(
        keras_of(state).get_layer(index=2).moving_mean.numpy(),
        0.8 * np.asarray(norm.moving_mean) + 0.2 * np.mean(seen, axis=0),
        rtol=1e-4,
    )
    for variable in (*state.model.variables, *state.optimizer.variables):
        copies = cluster.strategy.experimental_local_results(variable)
        assert len(copies) == cluster.replicas
        assert all((copy.numpy() == copies[0].numpy()).all() for copy in copies)


def test_a_repeated_step_draws_the_same_dropout_and_the_next_one_another(
    one_device: Cluster, tmp_path: Path
) -> None:
    state = create(one_device, tmp_path / "own.py", SUBCLASSED)
    first = [variable.numpy() for variable in state.model.variables]
    slots = [variable.numpy() for variable in state.optimizer.variables]

    def after(step: int) -> list[Any]:
        for variable, value in zip(
            (*state.model.variables, *state.optimizer.variables), first + slots, strict=True
        ):
            variable.assign(value)
        state.step.assign(step)
        train(one_device, state, 1)
        return [variable.numpy() for variable in state.model.variables]

    once, again, next_step = after(0), after(0), after(1)
    assert all((a == b).all() for a, b in zip(once, again, strict=True))
    assert any((a != b).any() for a, b in zip(once, next_step, strict=True))
    assert keras_of(state).losses, "the penalty of the kernel"


@pytest.mark.parametrize(
    ("end", "loss", "classes"),
    [
        (', activation="softmax"', '"sparse_categorical_crossentropy"', 3),
        ("", "keras.losses.SparseCategoricalCrossentropy(from_logits=True)", 3),
        (', activation="softmax"', "keras.losses.CategoricalCrossentropy(label_smoothing=0.1)", 3),
        (', activation="softmax"', '"mse"', 3),
        ("", "lambda y, p: keras.losses.sparse_categorical_crossentropy(y, p, True)", 3),
        (', activation="sigmoid"', '"binary_crossentropy"', 2),
        ("", "keras.losses.BinaryCrossentropy(from_logits=True)", 2),
    ],
)
def test_the_loss_is_that_of_compile(
    one_device: Cluster, tmp_path: Path, end: str, loss: str, classes: int
) -> None:
    """Models that end in softmax, sigmoid or neither; a class, its row of ones, or one number."""
    text = FUNCTIONAL.format(end=end, compile=f'model.compile("sgd", {loss})')
    text = text.replace("spec.classes, ", "1, ") if classes == 2 else text
    state = create(one_device, tmp_path / "own.py", text, manifest(classes=classes))
    features, labels = next(batches(1, classes))
    outputs = state.forward(tf.constant(features), training=False)
    assert outputs.shape == (BATCH, classes)
    ours = state.losses(outputs, tf.constant(labels), build_params({}, (), ()))
    given = tf.constant(labels) if "sparse" in loss.lower() else tf.one_hot(labels, classes)
    given = tf.constant(labels, tf.float32)[:, None] if classes == 2 else given
    model = keras_of(state)
    theirs = model.evaluate(features.astype(np.float32), given.numpy(), verbose=0)
    penalty = float(sum(model.losses))
    assert float(tf.reduce_mean(ours)) + penalty == pytest.approx(float(theirs), rel=1e-4)
    if end:
        probabilities = np.asarray(model(features.astype(np.float32)))
        both = np.hstack([1 - probabilities, probabilities]) if classes == 2 else probabilities
        np.testing.assert_allclose(tf.nn.softmax(outputs), both, rtol=1e-4, atol=1e-6)


@pytest.fixture(scope="module")
def followed(
    run_page: Callable[[Path, Path], None], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A folder in which the section about Keras models was followed."""
    folder = tmp_path_factory.mktemp("keras")
    page, code = pages.section("models", "Bring a Keras model"), pages.programs("models")["net.py"]
    (folder / "net.py").write_text(code, encoding="utf-8")
    (folder / "page.md").write_text(page.replace(code, ""), encoding="utf-8")
    run_page(folder / "page.md", folder)
    return folder


def test_the_pages_model_learns_and_its_metrics_are_counted(followed: Path) -> None:
    metrics = json.loads((followed / "results" / "metrics.json").read_text(encoding="utf-8"))
    assert metrics["test_accuracy"] >= 0.95
    assert metrics["test_accuracy"] <= metrics["test_top_3"] <= 1.0


def test_a_job_resumes_to_the_bit(
    followed: Path, run_here: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = followed / "results" / "checkpoints"
    newest = tf.train.latest_checkpoint(str(checkpoints))
    saved = _content(newest)
    for path in checkpoints.glob(f"{Path(newest).name}*"):
        path.unlink()
    shutil.rmtree(followed / "results" / "best", ignore_errors=True)
    monkeypatch.chdir(followed)
    page = (followed / "page.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"tpu-training (train-and-evaluate --model=net.py.*)$", page, re.M)
    run_here(*shlex.split(command))
    resumed = _content(newest)
    assert saved.keys() == resumed.keys()
    assert any("moving_variance" in key for key in saved)
    assert any("optimizer" in key for key in saved)
    assert all((saved[key] == resumed[key]).all() for key in saved)


def test_an_exported_model_answers_as_the_keras_model_does(followed: Path) -> None:
    from tpu_training.serving.model import restore_model

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(followed)
        model = restore_model("results").module.keras()
    features = np.random.default_rng(1).integers(0, 256, (5, 28, 28, 1)).astype(np.uint8)
    (exported,) = (followed / "exported").iterdir()
    signatures = tf.saved_model.load(str(exported)).signatures
    served = signatures["serving_default"](images=tf.constant(features))
    probabilities = np.asarray(model(features.astype(np.float32), training=False))
    np.testing.assert_allclose(served["probabilities"], probabilities, rtol=1e-4)


def _content(checkpoint: str) -> dict[str, Any]:
    reader = tf.train.load_checkpoint(checkpoint)
    return {
        key: reader.get_tensor(key)
        for key in reader.get_variable_to_shape_map()
        if key.startswith(("model", "optimizer", "step"))
    }


def test_a_step_on_eight_cores_has_a_kernel_for_each_operation_and_nothing_leaves_it(
    tpu: Cluster, bars: Path, tmp_path: Path
) -> None:
    data = open_data(str(bars))
    text = SUBCLASSED.replace('"adam"', "keras.optimizers.Adam(0.01, clipnorm=1.0)")
    state = create(tpu, tmp_path / "own.py", text, data.manifest)
    params = build_params({"global_batch_size": BATCH, "gradient_accumulation": 2}, (), ())
    step = body(create_train_loop(tpu, params, state, training_batches(data, tpu, params)))
    lacking = {op.type for op in operations(step) if on_tpu(op) and not accepts(op)}
    assert lacking == OF_TPUS
    assert {op.type for op in step.get_operations() if not on_tpu(op)} <= OF_HOST | CLOCK
    assert bytes_that_leave(step) == 0
    products = [op for op in operations(step) if op.type in PRODUCTS]
    assert {op.outputs[0].dtype for op in products} == {tf.bfloat16}


def test_metrics_with_a_state_are_counted_without_it_and_averages_are_refused(
    one_device: Cluster, tmp_path: Path
) -> None:
    kept = """
class Last(keras.metrics.Mean):
    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign(keras.ops.mean(y_pred))
        self.count.assign(1.0)
"""
    text = HEAD + kept + FUNCTIONAL.removeprefix(HEAD)
    compiled = "model.compile('sgd', 'categorical_crossentropy', metrics=[{}])"
    metrics = "keras.metrics.AUC(name='auc'), keras.metrics.Precision(name='said'), 'mae'"
    auc = text.format(end=', activation="softmax"', compile=compiled.format(metrics))
    state = create(one_device, tmp_path / "own.py", auc)
    tally, model = state.evaluated, keras_of(state)
    numbers, counts = np.zeros(tally.numbers), np.zeros(tally.counts, np.int64)
    whole: list[list[Any]] = [[], []]
    for features, labels in batches(2):
        outputs = state.forward(tf.constant(features), training=False)
        weights = np.repeat([1.0, 0.0], [BATCH - 5, 5]).astype(np.float32)
        found = tally.count(outputs, tf.constant(labels), tf.constant(weights))
        numbers, counts = numbers + found[0].numpy(), counts + found[1].numpy()
        whole[0].append(np.eye(CLASSES)[labels[:-5]])
        whole[1].append(np.asarray(model(features.astype(np.float32)))[:-5])
    figures, _ = tally.figures(numbers, counts)
    truth, said = map(np.concatenate, whole)
    for metric in (keras.metrics.AUC(name="auc"), keras.metrics.Precision(name="said")):
        metric.update_state(truth, said)
        assert figures[metric.name] == pytest.approx(float(metric.result()), rel=1e-4)
    assert figures["mean_absolute_error"] == pytest.approx(np.abs(truth - said).mean(), rel=1e-4)

    wrong = text.format(end="", compile=compiled.format("Last(name='last')"))
    with pytest.raises(InputError, match="the metric last has a state that doesn't add up"):
        create(one_device, tmp_path / "own.py", wrong)


def test_precision_sets_bfloat16_and_restores_the_global_policy(
    one_device: Cluster, tmp_path: Path
) -> None:
    state = create(one_device, tmp_path / "own.py", SUBCLASSED, precision="bfloat16")
    assert keras.mixed_precision.global_policy().name == "float32"
    assert all(variable.dtype == tf.float32 for variable in state.model.variables)
    features, _ = next(batches(1))
    graph = tf.function(state.forward, autograph=False).get_concrete_function(
        tf.constant(features), training=False
    )
    assert graph.outputs[0].dtype == tf.float32
    products = [op for op in graph.graph.get_operations() if op.type in ("Conv2D", "MatMul")]
    assert {op.outputs[0].dtype for op in products} == {tf.bfloat16}


def test_the_same_seed_makes_the_same_weights_under_the_same_names(
    one_device: Cluster, tmp_path: Path
) -> None:
    states = [create(one_device, tmp_path / "own.py", SUBCLASSED, seed=seed) for seed in (0, 0, 1)]
    (one, same, other) = (
        {path: variable.numpy() for path, variable in variable_paths(state.model)}
        for state in states
    )
    assert one.keys() == same.keys() == other.keys()
    assert {"conv2d/kernel", "scale/factor", "batch_normalization/moving_mean"} <= one.keys()
    assert all((one[path] == same[path]).all() for path in one)
    assert (one["conv2d/kernel"] != other["conv2d/kernel"]).any()


def test_a_layer_that_is_not_trained_keeps_its_values(one_device: Cluster, tmp_path: Path) -> None:
    text = SUBCLASSED.replace(
        "        self.norm =", "        self.conv.trainable = False\n        self.norm ="
    )
    state = create(one_device, tmp_path / "own.py", text)
    before = keras_of(state).conv.kernel.numpy()
    train(one_device, state, 1)
    assert (keras_of(state).conv.kernel.numpy() == before).all()
    assert len(state.model.trainable_variables) == 5


def test_a_model_that_is_not_compiled_takes_the_trainers_loss_and_optimizer(
    one_device: Cluster, tmp_path: Path
) -> None:
    text = FUNCTIONAL.format(end="", compile="pass")
    state = create(one_device, tmp_path / "own.py", text, optimizer="lars", learning_rate=0.1)
    assert type(state.optimizer).__name__ == "Lars"
    train(one_device, state, 1)
    assert int(state.step) == 1


def test_a_softmax_before_a_change_of_shape_is_taken_back_where_classes_stay_together(
    one_device: Cluster, tmp_path: Path
) -> None:
    flat = FUNCTIONAL.format(end=', activation="softmax"', compile="pass")
    kept = flat.replace(
        "(x)\n    model =",
        "(x)\n    outputs = layers.Reshape((1, spec.classes))(outputs)"
        "\n    outputs = layers.Reshape((spec.classes,))(outputs)\n    model =",
    )
    features = tf.constant(next(batches(1))[0])
    state = create(one_device, tmp_path / "own.py", kept)
    logits = state.forward(features, training=False)
    said = state.task.predictions(logits)["probabilities"]
    assert logits.shape == (BATCH, CLASSES)
    own = keras_of(state)(tf.cast(features, tf.float32), training=False)
    np.testing.assert_allclose(said, own, rtol=1e-4)
    torn = flat.replace(
        "(x)\n    model =",
        "(x)\n    outputs = layers.Reshape((spec.classes,))(layers.Softmax()("
        "layers.Reshape((-1, 2))(outputs)))\n    model =",
    ).replace(', activation="softmax"', "")
    state = create(one_device, tmp_path / "torn.py", torn, manifest(classes=4))
    with pytest.raises(InputError, match=r"torn.py:\d+: softmax is over 2 classes, but .* have 4"):
        state.forward(features, training=False)


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


PLAIN = FUNCTIONAL.format(end="", compile="pass")
WITH_STEP = SUBCLASSED.replace(
    "    def call(self, x, training",
    "    def train_step(self, data):\n        pass\n\n    def call(self, x, training",
)
OPTIMIZER = "model.compile(keras.optimizers.{}, 'sparse_categorical_crossentropy')"


@pytest.mark.parametrize(
    ("text", "values", "words"),
    [
        (
            PLAIN.replace("keras.Input(spec.shape)", "keras.Input((9, 9, 3))"),
            {},
            "the model takes inputs of the shape (9, 9, 3), but the dataset has images of the "
            "shape (6, 6, 1); use spec.shape",
        ),
        (
            PLAIN.replace("spec.classes", "10"),
            {},
            "the model returns outputs of the shape (10,) for an example, expected (3,): a "
            "number for each of the dataset's 3 classes; use spec.classes",
        ),
        (
            PLAIN.replace("(spec.shape)", "(spec.shape, batch_size=8)"),
            {},
            "the model only takes batches of 8; remove the batch size from its Input",
        ),
        (
            PLAIN.replace(
                "keras.Model(inputs, outputs)",
                "keras.Model([inputs, b := keras.Input((1,))], layers.Add()([outputs, b]))",
            ),
            {},
            "the model has 2 inputs (",
        ),
        (
            PLAIN.replace("Model(inputs, outputs)", "Model(inputs, [outputs, outputs])"),
            {},
            "the model has 2 outputs, but the data has one target; pass a dictionary of targets",
        ),
        (
            FUNCTIONAL.format(end="", compile="model.compile('sgd', 'mse', run_eagerly=True)"),
            {},
            "run_eagerly=True: remove it, and train with --eager=true",
        ),
        (
            FUNCTIONAL.format(end="", compile="model.compile('sgd', 'mse', loss_weights=[2.0])"),
            {},
            "loss_weights: there is one loss; remove them (`metrics` comes after them)",
        ),
        (WITH_STEP, {}, "Net has its own train_step, which only Keras' `fit` calls"),
        (
            PLAIN.replace("Flatten()", "Flatten(dtype='mixed_float16')"),
            {},
            "computes in float16, whose losses must be scaled and which TPUs lack",
        ),
        (
            FUNCTIONAL.format(end="", compile=OPTIMIZER.format("Adam(use_ema=True)")),
            {},
            "use_ema: the averages would not be used; remove it, and pass --ema_decay",
        ),
        (
            FUNCTIONAL.format(end="", compile=OPTIMIZER.format("Adam()")),
            {"learning_rate": 0.5, "clip_norm": 1.0},
            "--learning_rate=0.5, --clip_norm=1.0 have no effect, because compile() set the "
            "optimizer Adam; set them there, or choose the trainer's with --optimizer=",
        ),
        (
            FUNCTIONAL.format(
                end="",
                compile="model.compile('sgd', keras.losses.Poisson(reduction='sum'))",
            ),
            {},
            "is summed over the batch, so the learning rate would depend on its size",
        ),
    ],
)
def test_untrainable_keras_models_are_refused_with_their_line(
    one_device: Cluster, tmp_path: Path, text: str, values: dict[str, object], words: str
) -> None:
    with pytest.raises(InputError) as caught:
        create(one_device, tmp_path / "own.py", text, None, **values)
    assert str(caught.value).startswith(f"{tmp_path}/own.py:{line_of(text, 'def create_model')}: ")
    assert words in str(caught.value)


def test_an_exception_in_a_layer_names_its_line(one_device: Cluster, tmp_path: Path) -> None:
    text = SUBCLASSED.replace("return x * self.factor", "return x * self.no_such")
    with pytest.raises(Exception, match="no_such") as caught:
        create(one_device, tmp_path / "own.py", text)
    assert str(translate(caught.value)).startswith(
        f"{tmp_path}/own.py:{line_of(text, 'self.no_such')}: AttributeError: "
    )


def test_unknown_arguments_of_create_model_are_refused(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def create_model(shape):\n    pass\n")
    with pytest.raises(InputError, match="create_model takes shape; expected params, spec, seed"):
        load_model(str(tmp_path / "own.py"))
