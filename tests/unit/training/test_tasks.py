"""Each task learns a small problem, and counts its metrics exactly over a set with a padded batch.

The references are computed here, with NumPy and scikit-learn, from the model's outputs for all
examples at once.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("tensorflow")
import tensorflow as tf

from tpu_training.checkpoints.checkpoints import Checkpoints
from tpu_training.checkpoints.reader import JobRecord
from tpu_training.data.arrays import source_of_arrays
from tpu_training.data.conversion import Storage, store
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.errors import InputError, translate
from tpu_training.loop.callbacks import Callback, LoopReport, ShutdownRequest
from tpu_training.loop.evaluation import create_evaluation
from tpu_training.loop.state import TrainState, create_train_state
from tpu_training.loop.train import train
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition, load_model
from tpu_training.models.spec import DataSpec
from tpu_training.tasks import built_in_tasks, with_task

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

Array = npt.NDArray[Any]
TRAIN, TEST = 64, 37
PARAMS = Params(
    epochs=20,
    global_batch_size=32,
    evaluation_batch_size=16,
    steps_per_loop=8,
    learning_rate=0.05,
    checkpoint_interval=1000,
    snapshot_interval=0,
)
RANDOM = np.random.default_rng(3)


class Small(tf.Module):  # type: ignore[misc]
    """A dense layer on an example's bytes, or an embedding and a dense layer for each token."""

    def __init__(self, spec: DataSpec) -> None:
        super().__init__()
        self.text, self.shape = spec.kind == "text", spec.output_shape
        size = 16 if self.text else int(np.prod(spec.shape))
        rows = spec.vocabulary if self.text else 1
        self.each = len(self.shape) > 1
        # A hidden token can be told from those beside it only.
        self.beside = self.text and self.each and not spec.causal
        self.inputs = spec.shape[-1] if self.each and not self.text else size
        self.inputs *= 3 if self.beside else 1
        outputs = self.shape[-1]
        seed = (1, 2)
        self.table = tf.Variable(tf.random.stateless_normal((rows, size), seed))
        self.kernel = tf.Variable(tf.random.stateless_normal((self.inputs, outputs), seed) * 0.1)
        self.bias = tf.Variable(tf.zeros(outputs))

    def __call__(self, features: tf.Tensor, training: bool) -> tf.Tensor:
        if self.text:
            x = tf.gather(self.table, features)
            if self.beside:
                x = tf.concat([x, tf.roll(x, 1, axis=1), tf.roll(x, -1, axis=1)], axis=-1)
            x = x if self.each else tf.reduce_mean(x, axis=1)
        else:
            x = tf.cast(features, tf.float32) / 128.0 - 1.0 + 0.0 * self.table[0, 0]
            x = x if self.each else tf.reshape(x, (-1, self.inputs))
        return tf.tensordot(x, self.kernel, 1) + self.bias


SMALL = ModelDefinition("small", Params, lambda params, spec, seed: Small(spec))


def images(count: int) -> Array:
    """One colour each, and noise."""
    colours = RANDOM.integers(0, 196, (count, 1, 1, 3))
    return np.asarray(colours + RANDOM.integers(0, 60, (count, 4, 4, 3)), np.uint8)


def colour(x: Array) -> Array:
    return np.asarray(x.mean(axis=(1, 2)) / 128)


def texts(count: int) -> Array:
    """Tokens that count upwards from anywhere in 1 … 9, of 6 to 8 places."""
    ids = 1 + (RANDOM.integers(0, 9, (count, 1)) + np.arange(8)) % 9
    return np.asarray(np.where(np.arange(8) < RANDOM.integers(6, 9, (count, 1)), ids, 0))


PROBLEMS: dict[str, tuple[Callable[[int], Array], Callable[[Array], Any]]] = {
    "classification": (images, lambda x: colour(x).argmax(axis=-1)),
    "multi_label": (images, lambda x: (colour(x) > 1).astype(np.int64)),
    "regression": (images, lambda x: colour(x)[:, :2] - colour(x)[:, 2:]),
    "token_classification": (texts, lambda x: np.where(x > 0, x % 3, -1)),
    "segmentation": (images, lambda x: np.where(x[..., 1] > 200, 255, x.argmax(axis=-1))),
    "causal_lm": (texts, lambda x: None),
    "masked_lm": (texts, lambda x: None),
}


@dataclasses.dataclass(frozen=True)
class Trained:
    data: DataSet
    state: TrainState
    before: float
    after: Mapping[str, float]
    metrics: Mapping[str, float]
    outputs: Array
    targets: Array


Get: TypeAlias = Callable[[str], Trained]


def write(folder: Path, task: str) -> DataSet:
    features, targets = PROBLEMS[task]
    splits = {}
    for split, count in (("train", TRAIN), ("test", TEST)):
        x = features(count)
        splits[split] = (x, targets(x))
    store(source_of_arrays(task, splits, ()), str(folder), Storage())
    return open_data(str(folder))


def learn(cluster: Cluster, folder: Path, task: str) -> Trained:
    data = write(folder / "data", task)
    named = with_task(SMALL, task if task.endswith("lm") else None)
    state = create_train_state(cluster, named, PARAMS, data.manifest, steps=40)
    evaluate = create_evaluation(cluster, PARAMS, data, state)
    before = evaluate().loss
    reports: list[Any] = []

    class Keep(Callback):
        def between_loops(self, step: int, report: LoopReport) -> None:
            reports.append(report)

    checkpoints = Checkpoints(str(folder), state, JobRecord("small", PARAMS), 1, cluster)
    train(cluster, PARAMS, data, state, checkpoints, [Keep()], ShutdownRequest())
    after = evaluate()
    assert after.examples == TEST
    features, labels = read(data)
    inputs, targets = state.prepare(tf.constant(features), tf.constant(labels), False)
    outputs = state.forward(inputs, training=False)
    return Trained(
        data, state, before, after.figures, reports[-1].metrics, outputs.numpy(), targets.numpy()
    )


def read(data: DataSet) -> tuple[Array, Array]:
    from tpu_training.data.preprocessing import parse_examples

    records = data.shards("test").read_all().batch(TEST)
    parsed = parse_examples(next(iter(records)), data.manifest)
    return parsed[0].numpy(), parsed[1].numpy()


@pytest.fixture(scope="module")
def trained(one_device: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Get:
    """Trains a task when a test first asks for it."""
    return functools.cache(lambda task: learn(one_device, tmp_path_factory.mktemp(task), task))


@pytest.mark.parametrize("task", built_in_tasks())
def test_a_small_problem_is_learned(trained: Get, task: str) -> None:
    assert trained(task).after["loss"] < 0.7 * trained(task).before


@pytest.mark.parametrize("task", built_in_tasks())
def test_metrics_are_counted_while_training_too(trained: Get, task: str) -> None:
    found = trained(task)
    assert found.metrics
    assert set(found.metrics) < set(found.after)
    assert all(np.isfinite(value) for value in found.after.values())


def test_multi_label_figures_are_those_of_scikit_learn(trained: Get) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    found = trained("multi_label")
    said, true = found.outputs > 0, found.targets > 0
    assert found.after["micro_f1"] == pytest.approx(metrics.f1_score(true, said, average="micro"))
    assert found.after["macro_f1"] == pytest.approx(metrics.f1_score(true, said, average="macro"))
    assert found.after["exact_match"] == pytest.approx(metrics.accuracy_score(true, said))


def test_regression_figures_are_those_of_scikit_learn(trained: Get) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    found = trained("regression")
    true, said = found.targets, found.outputs
    assert found.after["loss"] == pytest.approx(metrics.mean_squared_error(true, said), rel=1e-5)
    assert found.after["mae"] == pytest.approx(metrics.mean_absolute_error(true, said), rel=1e-5)
    assert found.after["r2"] == pytest.approx(metrics.r2_score(true, said), rel=1e-5)


def test_r2_of_numbers_far_from_zero_is_exact(trained: Get) -> None:
    """Years: float32 would lose their variance in the difference of large squares."""
    metrics = pytest.importorskip("sklearn.metrics")
    true = np.asarray(2000 + RANDOM.normal(size=(400, 2)), np.float32)
    said = np.asarray(true + RANDOM.normal(size=(400, 2)) / 10, np.float32)
    tally = trained("regression").state.evaluated
    numbers, counts = tally.count(tf.constant(said), tf.constant(true), tf.ones(400))
    figures, _ = tally.figures(numbers.numpy(), counts.numpy())
    assert figures["r2"] == pytest.approx(metrics.r2_score(true, said), rel=1e-6)


@pytest.mark.parametrize("task", ["token_classification", "segmentation"])
def test_places_without_a_class_do_not_count(trained: Get, task: str) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    found = trained(task)
    counted = found.targets >= 0
    assert 0 < counted.sum() < counted.size
    true, said = found.targets[counted], found.outputs.argmax(axis=-1)[counted]
    assert found.after["accuracy"] == pytest.approx(np.mean(true == said))
    if task == "segmentation":
        expected = metrics.jaccard_score(true, said, average="macro")
        assert found.after["mean_iou"] == pytest.approx(expected)
    else:
        expected = metrics.f1_score(true, said, average="macro")
        assert found.after["macro_f1"] == pytest.approx(expected)


@pytest.mark.parametrize("task", ["causal_lm", "masked_lm"])
def test_perplexity_is_over_tokens_and_not_over_examples(trained: Get, task: str) -> None:
    found = trained(task)
    counted = found.targets >= 0
    each = tf.nn.log_softmax(found.outputs).numpy()
    places = np.take_along_axis(each, np.maximum(found.targets, 0)[..., None], -1)[..., 0]
    expected = float(-places[counted].mean(dtype=np.float64))
    assert found.after["token_loss"] == pytest.approx(expected, rel=1e-5)
    assert found.after["perplexity"] == pytest.approx(np.exp(expected), rel=1e-5)


def test_a_causal_model_learns_the_next_token_and_ignores_padding(
    trained: Get,
) -> None:
    features, _ = read(trained("causal_lm").data)
    targets = trained("causal_lm").targets
    assert targets.shape == (TEST, 7)
    assert np.array_equal(targets, np.where(features[:, 1:] > 0, features[:, 1:], -1))


def test_an_example_is_masked_alike_in_every_evaluation_whatever_its_batch(
    trained: Get,
) -> None:
    features, labels = read(trained("masked_lm").data)
    prepare = trained("masked_lm").state.prepare
    alone = [prepare(tf.constant(features[i : i + 1]), labels, False) for i in range(TEST)]
    _, together = prepare(tf.constant(features), labels, False)
    assert np.array_equal(np.concatenate([targets.numpy() for _, targets in alone]), together)


def test_fifteen_in_a_hundred_tokens_are_targets_and_most_of_them_hidden() -> None:
    from tpu_training.models.step_context import step_context
    from tpu_training.tasks.built_in import hide_tokens

    spec = DataSpec("text", (64,), "int32", 2, vocabulary=100)
    ids = tf.constant(RANDOM.integers(1, 100, (512, 64)), tf.int32)
    with step_context(tf.constant([1, 2])):
        for training in (True, False):
            shown, targets = (x.numpy() for x in hide_tokens(spec)(ids, ids, training))
            chosen = targets >= 0
            assert chosen.mean() == pytest.approx(0.15, abs=0.01)
            assert (shown[chosen] == 100).mean() == pytest.approx(0.8, abs=0.02)
            assert (shown == ids.numpy())[chosen].mean() == pytest.approx(0.1, abs=0.02)
            assert np.array_equal(shown[~chosen], ids.numpy()[~chosen])
            assert np.array_equal(targets[chosen], ids.numpy()[chosen])


def test_label_smoothing_of_places_is_that_of_examples_where_each_has_one_place() -> None:
    from tpu_training.tasks.built_in import place_losses, softmax_cross_entropy

    logits = tf.constant(RANDOM.normal(size=(6, 4)), tf.float32)
    targets = tf.constant([0, 1, 2, 3, 1, 2])
    params = dataclasses.replace(PARAMS, label_smoothing=0.2)
    each = place_losses(logits[:, None, None], targets[:, None, None], params)
    np.testing.assert_allclose(each, softmax_cross_entropy(logits, targets, params), rtol=1e-5)
    assert np.abs(each - softmax_cross_entropy(logits, targets, PARAMS)).min() > 0


def test_eight_replicas_count_what_one_does(cluster: Cluster, trained: Get) -> None:
    one = trained("token_classification")
    state = create_train_state(cluster, SMALL, PARAMS, one.data.manifest, steps=40)
    for variable, value in zip(
        state.model.trainable_variables, one.state.model.trainable_variables, strict=True
    ):
        variable.assign(value.numpy())
    params = dataclasses.replace(PARAMS, evaluation_batch_size=24)
    figures = create_evaluation(cluster, params, one.data, state)().figures
    assert figures == pytest.approx(one.after, rel=1e-5)


def test_a_causal_bert_does_not_depend_on_later_tokens() -> None:
    definition = load_model("bert")
    from tpu_training.tasks.built_in import next_token_spec

    spec = next_token_spec(DataSpec("text", (9,), "int32", 2, vocabulary=20))
    params = dataclasses.replace(definition.params(), precision="float32")
    model = definition.create_model(params, spec, 1)
    ids = np.asarray(RANDOM.integers(1, 20, (2, 8)), np.int32)
    changed = ids.copy()
    changed[:, 5:] = 1 + (ids[:, 5:] + 3) % 19
    said, then = (model(tf.constant(x)).numpy() for x in (ids, changed))
    assert said.shape == (2, 8, 20)
    np.testing.assert_allclose(said[:, :5], then[:, :5], atol=1e-5)
    assert np.abs(said[:, 5:] - then[:, 5:]).max() > 0.1


@pytest.mark.parametrize(
    ("task", "data", "words"),
    [
        ("regression", "classification", "needs examples with numbers, but the dataset has cla"),
        ("segmentation", "multi_label", "needs examples with mask, but the dataset has labels"),
        ("causal_lm", "regression", "is for text, but the dataset has images"),
        ("", "causal_lm", "the dataset has no targets; pass --task=causal_lm or --task=masked"),
        ("classify", "regression", "unknown; did you mean"),
    ],
)
def test_a_task_that_does_not_fit_the_data_is_refused(
    trained: Get, one_device: Cluster, task: str, data: str, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        create_train_state(
            one_device, with_task(SMALL, task), PARAMS, trained(data).data.manifest, steps=1
        )
    assert words in str(caught.value)


def test_a_model_with_one_output_per_example_refuses_segmentation(
    trained: Get, one_device: Cluster
) -> None:
    manifest = trained("segmentation").data.manifest
    with pytest.raises(InputError, match=r"mnist_cnn returns one row .* shape \(4, 4, 3\)"):
        create_train_state(one_device, load_model("mnist_cnn"), PARAMS, manifest, steps=1)


OWN = """import tensorflow as tf
from tpu_training import Metric, Task, mean

def losses(outputs, targets, params):
    return tf.reduce_mean(tf.abs(outputs - targets), axis=-1)

def close(outputs, targets, weights):
    near = tf.abs(outputs[:, 0] - targets[:, 0]) < 2.0
    if tf.reduce_sum(weights) > 0.0:
        near = tf.logical_and(near, True)
    count = tf.cast(weights, tf.int32)
    return tf.reduce_sum(tf.cast(near, tf.int32) * count), tf.reduce_sum(count)

def metrics(spec):
    return [Metric("close", close, mean)]

task = Task(name="years", losses=losses, metrics=metrics, targets="numbers", best="close")
"""


def trace_losses(state: TrainState) -> None:
    """As the first step does, for four examples of two numbers."""
    losses = tf.function(lambda said, true: state.losses(said, true, PARAMS), autograph=False)
    losses.get_concrete_function(tf.TensorSpec((4, 2)), tf.TensorSpec((4, 2)))


def with_own_task(path: Path, old: str = "", new: str = "") -> ModelDefinition:
    assert old in OWN
    path.write_text(OWN.replace(old, new) if old else OWN)
    return with_task(SMALL, str(path))


def test_a_best_figure_that_nothing_counts_is_refused(
    trained: Get, one_device: Cluster, tmp_path: Path
) -> None:
    own = with_own_task(tmp_path / "years.py", 'best="close"', 'best="closer"')
    manifest = trained("regression").data.manifest
    with pytest.raises(InputError, match="task years has best='closer'; use loss or close"):
        create_train_state(one_device, own, PARAMS, manifest, steps=1)


def test_a_task_of_ones_own_is_a_file(trained: Get, one_device: Cluster, tmp_path: Path) -> None:
    """Its control flow over tensors is compiled by AutoGraph."""
    data = trained("regression").data
    own = with_own_task(tmp_path / "years.py")
    state = create_train_state(one_device, own, PARAMS, data.manifest, steps=1)
    evaluation = create_evaluation(one_device, PARAMS, data, state)()
    features, targets = read(data)
    said = state.forward(tf.constant(features), training=False).numpy()
    errors = np.abs(said - targets)
    assert evaluation.loss == pytest.approx(errors.mean(), rel=1e-5)
    assert evaluation.metrics == {"close": pytest.approx(np.mean(errors[:, 0] < 2))}


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        (
            "reduce_mean(tf.abs(outputs - targets), axis=-1)",
            "reduce_mean(tf.abs(outputs - targets))",
            "def losses",
            "losses returned float32 of the shape (), expected the loss of each example",
        ),
        (
            "return tf.reduce_sum(tf.cast(near, tf.int32) * count), tf.reduce_sum(count)",
            "return tf.cast(near, tf.int32) * count",
            "def close",
            "the metric close returned int32 of the shape (2,) for 2 examples and int32 of the "
            "shape (3,) for 3; sum over the batch",
        ),
        (
            "return tf.reduce_sum(tf.cast(near, tf.int32) * count), tf.reduce_sum(count)",
            "return 'many'",
            "def close",
            "the metric close returned a str, expected a tensor of numbers",
        ),
        (
            'Metric("close", close, mean)',
            'Metric("close", close, lambda sums: [1.0, 2.0])',
            "    return [Metric",
            "the value of the metric close is list of the shape (2,), expected a number",
        ),
        (
            '[Metric("close", close, mean)]',
            "close",
            "def metrics",
            "metrics returned <function close",
        ),
    ],
)
def test_errors_of_an_own_task_name_its_line_before_the_first_step(
    trained: Get, one_device: Cluster, tmp_path: Path, old: str, new: str, line: str, words: str
) -> None:
    own = with_own_task(tmp_path / "years.py", old, new)
    manifest = trained("regression").data.manifest
    number = OWN[: OWN.index(line)].count("\n") + 1
    with pytest.raises(InputError) as caught:
        trace_losses(create_train_state(one_device, own, PARAMS, manifest, steps=1))
    assert f"years.py:{number}: {words}" in str(caught.value)


def test_an_exception_in_a_metric_names_its_line(
    trained: Get, one_device: Cluster, tmp_path: Path
) -> None:
    own = with_own_task(tmp_path / "years.py", "outputs[:, 0] - targets[:, 0]", "outputs.nothing")
    with pytest.raises(AttributeError) as caught:
        create_train_state(one_device, own, PARAMS, trained("regression").data.manifest, steps=1)
    number = OWN[: OWN.index("    near =")].count("\n") + 1
    assert str(translate(caught.value)).startswith(f"{tmp_path}/years.py:{number}: ")
