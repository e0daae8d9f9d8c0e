"""`fit` takes examples in memory: arrays of any form, Datasets, a PyDataset, several inputs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tpu_training
from tests.unit.training import pages
from tpu_training.data.manifest import Manifest, Split
from tpu_training.errors import DataError, InputError
from tpu_training.models.params import Params
from tpu_training.models.spec import DataSpec

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

KERAS = pytest.mark.skipif(
    not hasattr(pytest.importorskip("keras"), "StatelessScope"), reason="own models need Keras 3"
)

RANDOM = np.random.default_rng(3)
TABLE = RANDOM.normal(size=(48, 5)).astype(np.float32)
CODES = RANDOM.integers(0, 4, (48, 2)).astype(np.int16)
CLASSES = (TABLE[:, 0] > 0).astype(np.int64)
TWO: dict[str, Any] = {"table": TABLE, "codes": CODES}
SIZES = {"global_batch_size": 8, "evaluation_batch_size": 16, "learning_rate": 0.1, "epochs": 3}


@pytest.fixture
def fit(one_device: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tpu_training.Result]:
    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: one_device)
    return tpu_training.fit


def linear(params: Any, spec: Any, seed: int) -> Any:
    """Create a model of the features, which are one array or two by name."""
    import tensorflow as tf

    class Linear(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            sizes = [shape[0] for _, shape, _ in spec.inputs] or [spec.shape[0]]
            self.kernel = tf.Variable(tf.zeros((sum(sizes), spec.classes)))

        def __call__(self, features: Any, training: bool) -> tf.Tensor:
            parts = [tf.cast(each, tf.float32) for each in tf.nest.flatten(features)]
            return tf.concat(parts, axis=1) @ self.kernel

    return Linear()


def keras_model(params: Any, spec: Any, seed: int) -> Any:
    import keras

    inputs = [keras.Input(shape, name=name, dtype=dtype) for name, shape, dtype in spec.inputs]
    parts = [keras.layers.Dense(4)(each) for each in inputs]
    return keras.Model(inputs, keras.layers.Dense(spec.classes)(keras.layers.Concatenate()(parts)))


def dataset(**options: Any) -> Any:
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((TWO, CLASSES))
    return rows.shuffle(48, **options).map(lambda x, y: (x, y)).batch(16).prefetch(1)


def kernel(result: tpu_training.Result) -> Any:
    return result.model.kernel.numpy()


def test_float_features_train_without_a_test_split_which_is_told(
    fit: Callable[..., tpu_training.Result], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "tpu_training"):
        result = fit(linear, data=(TABLE, CLASSES), model_dir=str(tmp_path), **SIZES)
    assert "the data has no test split" in caplog.text
    assert result.metrics["steps"] == 18
    assert not [name for name in result.metrics if name.startswith("test_")]
    found = result.predict(TABLE)["classes"]
    assert np.mean(found == CLASSES) > 0.8
    loaded = tpu_training.load(str(tmp_path), model=linear)
    np.testing.assert_array_equal(loaded.predict(TABLE)["classes"], found)
    with pytest.raises(InputError, match=re.escape("features: float32 of the shape (48, 4), exp")):
        loaded.predict(TABLE[:, :4])


@pytest.mark.parametrize(
    ("length", "steps", "examples"),
    [
        ({"steps": 5}, 5, 48),
        ({"limit_batches": 2}, 2, 32),
        ({"steps": 1, "limit_batches": 9}, 1, 48),
    ],
)
def test_a_training_ends_after_the_steps_that_are_asked_for(
    fit: Callable[..., tpu_training.Result],
    length: dict[str, int],
    steps: int,
    examples: int,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    data, sizes = (TABLE, CLASSES), {**SIZES, **length}
    with caplog.at_level("INFO", "tpu_training"):
        result = fit(linear, data=data, test=data, model_dir=str(tmp_path), **sizes)
    assert result.metrics["steps"] == steps
    assert result.metrics["test_examples"] == examples
    assert f"are {steps} steps" in caplog.text
    assert "too few to learn from" not in caplog.text


def test_tokens_are_those_of_texts_and_said_once(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    for sizes, words in (
        ({"tokens": 1e9}, "--tokens=1e+09: the dataset data has no texts; use --steps or --epochs"),
        ({"tokens": 1e9, "steps": 3}, "--tokens=1e+09: --steps=3 says it, too; omit one of the"),
    ):
        with pytest.raises(InputError, match=re.escape(words)):
            fit(linear, data=(TABLE, CLASSES), model_dir=str(tmp_path), **SIZES, **sizes)
    texts = DataSpec("text", (32,), "int32", 2, vocabulary=9)
    manifest = Manifest("reviews", texts, "tokens", {"train": Split(100, ())})
    params = Params(tokens=10_000, global_batch_size=16)
    assert manifest.steps(params) == 10_000 // (16 * 32)


@KERAS
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("end", ["softmax", "sigmoid", None])
def test_eager_steps_run_the_models_python_with_the_same_result(
    fit: Callable[..., tpu_training.Result], end: str | None, parts: int, tmp_path: Path
) -> None:
    import keras
    import tensorflow as tf

    seen: list[Any] = []

    class Shown(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            seen.append(x)
            return x

    def model() -> Any:
        inputs = keras.Input((5,))
        dense = keras.layers.Dense(1 if end == "sigmoid" else 2, activation=end, name="dense")
        return keras.Model(inputs, dense(Shown()(inputs)))

    def weights(**more: Any) -> tuple[Any, Any]:
        data, folder = (TABLE, CLASSES), str(tmp_path / str(len(more)))
        sizes = {**SIZES, "epochs": 1, "gradient_accumulation": parts, **more}
        result = fit(model, data=data, test=data, model_dir=folder, **sizes)
        return result.model.keras().get_weights(), result.metrics["test_loss"]

    compiled, loss = weights()
    assert not [x for x in seen if isinstance(x, tf.Tensor) and hasattr(x, "numpy")]
    eager, same = weights(eager=True)
    numbers = [x.numpy() for x in seen if isinstance(x, tf.Tensor) and hasattr(x, "numpy")]
    assert sum(map(len, numbers)) >= 2 * len(TABLE)
    assert same == pytest.approx(loss, rel=1e-4)
    for one, other in zip(eager, compiled, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)
    assert not tf.config.functions_run_eagerly()


def test_eager_steps_are_refused_where_no_debugger_stops(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="--eager=true: JAX compiles every step; omit it"):
        fit(linear, data=(TABLE, CLASSES), model_dir=str(tmp_path), eager=True, backend="jax")


def test_more_examples_are_evaluated_and_predicted_exactly(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: cluster)
    held = (TABLE[:21], CLASSES[:21])
    given: dict[str, Any] = {**SIZES, "model_dir": str(tmp_path), "ema_decay": 0.9}
    result = tpu_training.fit(linear, data=(TABLE, CLASSES), test=held, **given)
    measured = {name: result.metrics[f"test_{name}"] for name in ("loss", "accuracy")}
    loaded = tpu_training.load(str(tmp_path), model=linear)
    rows = tf.data.Dataset.from_tensor_slices(held)
    for model in (result, loaded):
        for examples in (held, rows.batch(4)):
            assert tpu_training.evaluate(model, examples) == pytest.approx(measured, rel=1e-6)
    expected = result.predict(TABLE)["probabilities"]
    for found in (
        tpu_training.predict(result, rows)["probabilities"],
        tpu_training.predict(loaded, TABLE[:21])["probabilities"],
    ):
        np.testing.assert_allclose(found, expected[:21], rtol=1e-5)
    wide = "float32 of the shape (4,) with class, but the model was trained with features float32"
    with pytest.raises(InputError, match=re.escape(wide)):
        tpu_training.evaluate(result, (TABLE[:, :4], CLASSES))
    with pytest.raises(InputError, match="a class other than 0 to 1"):
        tpu_training.evaluate(loaded, (TABLE, CLASSES + 1))
    with pytest.raises(InputError, match="model is a tuple; expected what fit or load returned"):
        tpu_training.predict(held, TABLE)  # type: ignore[arg-type]


def small_keras_model(params: Any, spec: Any, seed: int) -> Any:
    import keras

    inputs = keras.Input(spec.shape, dtype=spec.dtype)
    flat = keras.layers.Flatten()(keras.ops.cast(inputs, "float32"))
    return keras.Model(inputs, keras.layers.Dense(spec.output_shape[-1])(flat))


@KERAS
@pytest.mark.parametrize(
    ("shape", "dtype", "targets"),
    [
        pytest.param((5,), "float64", CLASSES, id="a table"),
        pytest.param((16, 3), "float32", TABLE[:, :1], id="time series"),
        pytest.param((400,), "int16", CLASSES, id="audio"),
        pytest.param((8,), "bfloat16", TABLE[:, :2] > 0, id="embeddings"),
        pytest.param((6, 6, 5), "float32", CLASSES, id="images of floats and five channels"),
    ],
)
def test_what_researchers_have_is_trained_tested_and_predicted(
    fit: Callable[..., tpu_training.Result],
    tmp_path: Path,
    shape: tuple[int, ...],
    dtype: str,
    targets: Any,
) -> None:
    import tensorflow as tf

    values = tf.cast(RANDOM.normal(size=(48, *shape)) * 9, dtype).numpy()
    data = (values[:32], targets[:32])
    held = (values[32:], targets[32:])
    result = fit(small_keras_model, data=data, test=held, model_dir=str(tmp_path), **SIZES)
    assert result.metrics["test_examples"] == 16
    assert np.isfinite(result.metrics["test_loss"])
    (found, *_) = result.predict(values[:3]).values()
    assert len(found) == 3


@KERAS
def test_two_inputs_of_a_keras_model_are_evaluated_exactly(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    held: Any = {name: values[:21] for name, values in TWO.items()}
    result = fit(
        keras_model,
        data=(TWO, CLASSES),
        validation=dataset(),
        test=(held, CLASSES[:21]),
        model_dir=str(tmp_path),
        **SIZES,
    )
    assert result.metrics["test_examples"] == 21
    assert result.metrics["validation_examples"] == 48
    validated = [row["validation_loss"] for row in result.history if "validation_loss" in row]
    assert validated[-1] == pytest.approx(result.metrics["validation_loss"])
    right = np.mean(result.predict(held)["classes"] == CLASSES[:21])
    assert result.metrics["test_accuracy"] == pytest.approx(right)


def test_a_dataset_resumes_with_the_same_examples_though_its_shuffle_has_no_seed(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    constant = {**SIZES, "schedule": "constant", "warmup_fraction": 0.0}
    whole = fit(linear, data=dataset(), model_dir=f"{tmp_path}/constant", **constant)
    # Ends within an epoch; another object with another seed of its own continues.
    halfway = {**constant, "epochs": 1.5}
    fit(linear, data=dataset(), model_dir=f"{tmp_path}/parts", **halfway)
    resumed = fit(linear, data=dataset(seed=9), model_dir=f"{tmp_path}/parts", **constant)
    np.testing.assert_array_equal(kernel(whole), kernel(resumed))


def test_a_split_by_take_and_skip_stays_one_if_the_shuffle_does_not_reshuffle() -> None:
    import tensorflow as tf

    from tpu_training.data import data_set

    rows = tf.data.Dataset.range(20).shuffle(20, seed=4, reshuffle_each_iteration=False)
    made = data_set.given_function({"train": rows.skip(5), "validation": rows.take(5)})

    def read(split: str, seed: int) -> set[int]:
        rows = made(split, seed)
        assert rows is not None
        return set(rows.as_numpy_iterator())

    for seed in (1, 2):
        train, held = read("train", seed), read("validation", seed)
        assert train | held == set(range(20))
        assert len(train) == 15


def test_a_dataset_is_read_by_rows_though_it_was_batched_in_between() -> None:
    import tensorflow as tf

    from tpu_training.data import data_set, function

    pairs = tf.data.Dataset.from_tensor_slices((TABLE, TABLE)).batch(4)
    for given, examples in ((pairs, 48), (pairs.unbatch(), 48), (pairs.unbatch().batch(6), 48)):
        assert function.look(data_set.given_function({"train": given}), 0).examples == {
            "train": examples
        }


@pytest.mark.parametrize("hosts", [2, 3])
def test_any_number_of_hosts_shares_the_batches_of_a_dataset_of_ones_own(
    cluster: Cluster, hosts: int
) -> None:
    from tpu_training.data import data_set, pipeline
    from tpu_training.models.params import Params

    made = data_set.given_function({"train": dataset(), "test": dataset()})
    data = data_set.of_function(made, "data", 3)
    params = Params(global_batch_size=12, evaluation_batch_size=12, seed=3)

    def read(first: int, of: int) -> list[Any]:
        """The rows of each of four batches from step `first` on, of all hosts in turn."""
        parts = [
            pipeline.training_rows(data, params, first, of, host).take(4) for host in range(of)
        ]
        batches = zip(*(part.as_numpy_iterator() for part in parts), strict=True)
        return [np.concatenate([features["table"] for features, _ in batch]) for batch in batches]

    np.testing.assert_array_equal(read(3, 1), read(3, hosts))
    np.testing.assert_array_equal(read(0, 1)[3], read(3, hosts)[0])
    seen: list[Any] = []
    for host in range(hosts):
        rows = pipeline.evaluation_rows(data, params, hosts, host)
        for features, _, weights in rows.as_numpy_iterator():
            seen += features["table"][weights == 1].tolist()
    assert sorted(seen) == sorted(TABLE.tolist())


PROGRAM = """
import sys
import numpy as np
import tensorflow as tf
from tpu_training import InputError, fit

table = np.arange(96, dtype=np.float32).reshape(48, 2) / 96
rows = tf.data.Dataset.from_tensor_slices((table, table[:, :1]))
changed = rows.shuffle(48).map(lambda x, y: ({"x": x * 2}, y)).batch(8)
python = tf.data.Dataset.from_generator(
    lambda: iter(zip(table, table[:, :1])), output_signature=rows.element_spec
)


def create_model(params, spec, seed):
    class Linear(tf.Module):
        def __init__(self):
            super().__init__()
            self.kernel = tf.Variable(tf.zeros((2, 1)))

        def __call__(self, features, training):
            return tf.nest.flatten(features)[0] @ self.kernel

    return Linear()


given = {"global_batch_size": 8, "evaluation_batch_size": 16, "epochs": 1, "tpu": sys.argv[1]}
result = fit(create_model, data=changed, test=changed, model_dir="a", **given)
print("examples", result.metrics["test_examples"], result.metrics["endpoint"])
result = fit(create_model, data=(table, table[:, :1]), model_dir="b", **given)
print("steps", result.metrics["steps"])
try:
    fit(create_model, data=python, model_dir="c", **given)
except InputError as error:
    print("refused", error)
"""


def test_a_worker_reads_a_dataset_that_the_program_made_before_it_connected(
    worker: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, f"grpc://{worker}"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr[-2000:]
    assert f"examples 48 grpc://{worker}" in done.stdout
    assert "steps 6" in done.stdout
    assert "refused data: runs Python for each example, which the workers" in done.stdout


@KERAS
def test_a_py_dataset_gives_its_batches_as_examples(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    import keras

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return 4

        def __getitem__(self, number: int) -> Any:
            rows = slice(13 * number, 13 * (number + 1))  # The last one has 9 examples.
            return TABLE[rows], CLASSES[rows]

    result = fit(linear, data=Batches(), model_dir=str(tmp_path), **SIZES)
    assert result.metrics["steps"] == 18


def bad_value(at: int) -> Any:
    values = TABLE.copy()
    values[at, 2] = np.nan
    return values


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({**TWO, "codes": CODES[:9]}, "features/codes has 9"),
        (bad_value(7), "features has NaN or infinity in 1 examples, first in number 7"),
        ({"table": [[1.0], [1.0, 2.0]]}, "features/table: its rows have different lengths"),
        (TABLE.astype(np.complex128), "features is complex128, which TPUs do not compute with"),
        (TABLE.astype(np.float16), "features is float16, which TPUs do not compute with"),
        ({"table": TABLE, "unit": 3.0}, "features/unit is a single float32"),
    ],
)
def test_features_that_do_not_do_are_refused_by_their_path(features: Any, message: str) -> None:
    from tpu_training.data import data_set, function

    with pytest.raises(DataError, match=re.escape(message)):
        function.look(data_set.given_function({"train": (features, CLASSES)}), 0)


def test_a_dataset_without_end_or_with_ragged_features_or_nan_is_refused() -> None:
    import tensorflow as tf

    from tpu_training.data import data_set, function

    ragged = tf.data.Dataset.from_tensor_slices((tf.ragged.constant([[1.0], [2.0, 3.0]]), [0, 1]))
    given = {
        "never ends; remove repeat()": dataset().repeat(),
        "`generator` yielded an element of shape": tf.data.Dataset.from_generator(
            lambda: [TABLE], output_signature=tf.TensorSpec((5,))
        ),
        "an example of the shape [2], but the first one has [1]": ragged,
        "NaN or infinity in features": tf.data.Dataset.from_tensor_slices((bad_value(40), CLASSES)),
        "reshuffle_each_iteration=False) has no seed": dataset(reshuffle_each_iteration=False),
        "cache(FILE) after shuffle() keeps one epoch's order": dataset().cache("/tmp/rows"),
    }
    for message, rows in given.items():
        with pytest.raises(DataError, match=re.escape(message)):
            function.look(data_set.given_function({"train": rows}), 0)


def test_a_dataset_with_arrays_of_more_than_a_graph_holds_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import tensorflow as tf

    from tpu_training.data import data_set

    # What TensorFlow gives for 2.3 GB.
    monkeypatch.setattr(tf.data.Dataset, "_as_serialized_graph", lambda _: tf.constant(b""))
    with pytest.raises(DataError, match=r"data\['train'\]: its graph is larger than 2 GB"):
        data_set.given_function({"train": dataset()})


def without_targets() -> Any:
    """Return a Dataset of features, None and weights."""
    import tensorflow as tf

    rows = tf.data.Dataset.from_tensor_slices((TABLE, np.ones(len(TABLE), np.float32)))
    return rows.map(lambda features, weight: (features, None, weight))


def test_what_is_no_data_is_told_before_anything_is_created(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    for data, message in (
        ({"test": (TABLE, CLASSES)}, "data has 'test'; expected 'train'"),
        (3, r"data['train'] is a int; expected a tuple of features and targets"),
        ((TABLE,), r"data['train'] is a tuple of 1; expected a tuple of features"),
        ((TABLE, None, CLASSES), "data['train'] has None as targets; leave them out, or next to"),
        (without_targets(), "data['train'] has None as targets"),
        (without_targets().batch(2), "data['train'] has None as targets"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            fit(linear, data=data, model_dir=str(tmp_path), **SIZES)
    both = {"train": (TABLE, CLASSES), "test": (TABLE, CLASSES)}
    with pytest.raises(InputError, match=re.escape("test: data={'test': …} has such a split, too")):
        fit(linear, data=both, test=(TABLE, CLASSES), model_dir=str(tmp_path))
    with pytest.raises(InputError, match="validation: data=somewhere names a dataset"):
        fit(linear, data="somewhere", validation=dataset(), model_dir=str(tmp_path))


@KERAS
def test_a_keras_optimizer_loss_and_metric_are_those_of_the_training(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    import keras

    rate = keras.optimizers.schedules.ExponentialDecay(0.05, decay_steps=1, decay_rate=0.5)
    result = fit(
        keras_model,
        data=(TWO, CLASSES),
        test=(TWO, CLASSES),
        model_dir=str(tmp_path),
        optimizer=keras.optimizers.Lion(rate),
        loss=keras.losses.CategoricalHinge(),
        metrics=["mean_absolute_error"],
        global_batch_size=8,
    )
    assert "test_mean_absolute_error" in result.metrics
    assert result.history[-1]["learning_rate"] < 0.05
    model = tpu_training.load(str(tmp_path), model=keras_model)
    found = model.predict({name: values[:5] for name, values in TWO.items()})
    np.testing.assert_allclose(
        found["probabilities"],
        result.predict({name: values[:5] for name, values in TWO.items()})["probabilities"],
        rtol=1e-4,
    )


@KERAS
def test_what_fit_is_not_given_stays_as_the_model_was_compiled(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    import keras

    def compiled(params: Any, spec: Any, seed: int) -> Any:
        model = keras_model(params, spec, seed)
        model.compile(
            optimizer=keras.optimizers.SGD(0.25), loss="categorical_hinge", metrics=["mae"]
        )
        return model

    given = {"data": (TWO, CLASSES), "test": (TWO, CLASSES), "global_batch_size": 8, "epochs": 1}
    result = fit(compiled, model_dir=f"{tmp_path}/a", metrics=["mse"], **given)
    assert result.history[-1]["learning_rate"] == 0.25
    assert "test_mean_squared_error" in result.metrics or "test_mse" in result.metrics
    result = fit(compiled, model_dir=f"{tmp_path}/b", optimizer=keras.optimizers.Lion(), **given)
    assert {"test_mae", "test_mean_absolute_error"} & set(result.metrics)


@KERAS
@pytest.mark.parametrize("name", ["lamb", "adafactor"])
def test_a_keras_optimizer_may_be_named(
    fit: Callable[..., tpu_training.Result], tmp_path: Path, name: str
) -> None:
    given = {"data": (TWO, CLASSES), "model_dir": str(tmp_path), "global_batch_size": 8}
    result = fit(keras_model, optimizer=name, epochs=1, **given)
    assert result.model.keras().optimizer.name == name
    assert result.history[-1]["learning_rate"] == pytest.approx(0.001)


@KERAS
def test_an_unknown_name_of_a_keras_optimizer_is_refused(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"optimizer='lam': unknown; .* lamb, lion"):
        fit(keras_model, data=(TWO, CLASSES), model_dir=str(tmp_path), optimizer="lam")


@KERAS
def test_a_keras_optimizer_needs_a_keras_model(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    import keras

    with pytest.raises(InputError, match="optimizer, loss and metrics of Keras need a Keras model"):
        fit(
            linear, data=(TABLE, CLASSES), model_dir=str(tmp_path), optimizer=keras.optimizers.SGD()
        )


@KERAS
def test_the_pages_example_of_two_inputs_learns(
    fit: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "two_inputs"}
    exec(compile(pages.programs("models")["two_inputs.py"], "two_inputs.py", "exec"), names)
    found = names["result"].predict(names["rows"])["classes"]
    assert np.mean(found == names["classes"]) > 0.9
    np.testing.assert_array_equal(names["model"].predict(names["few"])["classes"], found[:3])
