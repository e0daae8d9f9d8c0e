"""Arrays of any shape and type in files: what is written comes back, and trains."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tpu_training
from tpu_training.data import arrays
from tpu_training.data.conversion import _serialise, convert
from tpu_training.data.data_set import open_data
from tpu_training.data.inspection import inspect
from tpu_training.data.manifest import parse_manifest
from tpu_training.data.pipeline import training_rows
from tpu_training.data.preprocessing import parse_examples
from tpu_training.errors import DataError, InputError, translate
from tpu_training.models.params import Params
from tpu_training.models.spec import DTYPES

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

RANDOM = np.random.default_rng(5)
COUNT = 24
NUMBERS = RANDOM.normal(size=(COUNT, 2, 3)) * 50
WEIGHTS = (RANDOM.integers(1, 4, COUNT) / 2).astype(np.float32)
CLASSES = np.arange(COUNT) % 3


def write(folder: Path, *examples: Any) -> str:
    tpu_training.write_data(str(folder), train=examples, test=examples)
    return str(folder)


def read(folder: str) -> Any:
    """Features and targets of the split to test with, in their order."""
    import tensorflow as tf

    data = open_data(folder)
    serialised = next(iter(data.shards("test").read_all().batch(1000)))
    return tf.nest.map_structure(lambda x: x.numpy(), parse_examples(serialised, data.manifest))


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_array_of_each_type_comes_back_as_it_was(tmp_path: Path, dtype: str) -> None:
    import tensorflow as tf

    values = tf.cast(np.abs(NUMBERS), dtype).numpy()
    features, classes = read(write(tmp_path / "out", values, CLASSES))
    if dtype == "float64":  # TPUs compute with float32.
        values = values.astype(np.float32)
    assert features.dtype == values.dtype
    # Two axes of bytes are an image of one channel.
    np.testing.assert_array_equal(features.reshape(values.shape), values)
    np.testing.assert_array_equal(classes, CLASSES)


def test_several_inputs_and_targets_with_weights_come_back_by_name(tmp_path: Path) -> None:
    rows = {"signal": NUMBERS.astype(np.float32), "sensor": CLASSES[:, None]}
    targets = {"kind": CLASSES, "size": NUMBERS[:, 0].astype(np.float32)}
    features, (found, weights) = read(write(tmp_path / "out", rows, targets, WEIGHTS))
    assert {name: list(each) for name, each in rows.items()}.keys() == features.keys()
    for name in rows:
        np.testing.assert_array_equal(features[name], rows[name])
    for name in targets:
        np.testing.assert_array_equal(found[name], targets[name])
    np.testing.assert_array_equal(weights, WEIGHTS)


@pytest.mark.parametrize("vocabulary", [300, 70_000])
def test_token_ids_come_back_whatever_their_size(tmp_path: Path, vocabulary: int) -> None:
    ids = RANDOM.integers(1, vocabulary, (COUNT, 5))
    ids[0, 0] = vocabulary - 1
    features, _ = read(write(tmp_path / "out", ids, CLASSES))
    np.testing.assert_array_equal(features, ids)


def test_a_function_with_float_features_is_converted(tmp_path: Path) -> None:
    (tmp_path / "waves.py").write_text(
        "import tensorflow as tf\n\n\n"
        "def dataset(split, context):\n"
        "    if split == 'validation':\n"
        "        return None\n"
        "    numbers = tf.data.Dataset.range(12)\n"
        "    return numbers.map(lambda n: ({'wave': tf.sin(tf.cast(n, tf.float32))}, n % 2, 2.0))\n"
    )
    convert(str(tmp_path / "waves.py"), str(tmp_path / "out"))
    features, (classes, weights) = read(str(tmp_path / "out"))
    np.testing.assert_allclose(features["wave"], np.sin(np.arange(12)), rtol=1e-6)
    assert classes.tolist() == [0, 1] * 6
    assert set(weights.tolist()) == {2.0}


@pytest.mark.parametrize("cache", ["memory", "none"])
def test_stored_arrays_train_as_those_in_memory(
    one_device: Cluster, tmp_path: Path, cache: str
) -> None:
    keras = pytest.importorskip("keras")
    if not hasattr(keras, "StatelessScope"):
        pytest.skip("own models need Keras 3")
    rows = {"signal": NUMBERS.astype(np.float32) / 50, "sensor": CLASSES[:, None]}
    targets = {"kind": CLASSES, "size": NUMBERS[:, 0].astype(np.float32) / 50}

    def model(spec: Any) -> Any:
        signal = keras.Input((2, 3), name="signal")
        sensor = keras.Input((1,), name="sensor", dtype="int64")
        body = keras.layers.Flatten()(signal)
        numbers = keras.ops.cast(sensor, "float32")
        body = keras.layers.Concatenate()([body, numbers])
        outputs = {
            "kind": keras.layers.Dense(3, activation="softmax", kernel_initializer="ones")(body),
            "size": keras.layers.Dense(3, kernel_initializer="ones")(body),
        }
        made = keras.Model([signal, sensor], outputs)
        made.compile("sgd", loss={"kind": "sparse_categorical_crossentropy", "size": "mse"})
        return made

    given = (rows, targets, WEIGHTS)
    stored: dict[str, Any] = {"model": model, "data": write(tmp_path / "out", *given)}
    memory: dict[str, Any] = {"model": model, "data": given, "test": given}
    results = []
    for number, data in enumerate((stored, memory)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tpu_training.job.run.connect", functools.cache(lambda *_: one_device))
            training = tpu_training.fit(
                **data,
                model_dir=str(tmp_path / str(number)),
                global_batch_size=COUNT,
                evaluation_batch_size=16,
                steps=5,
                cache=cache,
            )
        results.append(training)
    # A step's batch is all examples, in whatever order.
    losses, alike = ([row["loss"] for row in each.history] for each in results)
    assert losses == pytest.approx(alike, rel=1e-5)
    tested, alike = (each.metrics["test_loss"] for each in results)
    assert tested == pytest.approx(alike, rel=1e-5)


def test_inspection_names_the_arrays(tmp_path: Path) -> None:
    rows = {"signal": NUMBERS.astype(np.float32), "sensor": CLASSES[:, None]}
    found = inspect(write(tmp_path / "out", rows, CLASSES, WEIGHTS))
    text = str(found)
    assert "'signal': 'float32 of the shape (2, 3)'" in text
    assert "train: 24 examples in 1 files, 0.0 MiB; checksums verified" in text
    told = json.loads(json.dumps(found.as_json()))
    assert told["inputs"] == [["sensor", [1], "int64"], ["signal", [2, 3], "float32"]]
    assert told["weighted"] is True
    assert told["splits"]["train"]["classes"] == [8, 8, 8]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "float16"}, "which array does not store"),
        ({"dtype": "no type"}, "which array does not store"),
        ({"shape": [2, 0]}, "which array does not store"),
        ({"targets": "several"}, "which array does not store"),
        ({"several": [["size", [1], "float32"]]}, "which array does not store"),
        ({"kind": "image"}, "which array does not store"),
        ({"causal": True}, "which array does not store"),
        ({"outputs": [7]}, "which array does not store"),
        ({"classes": -1}, "spec.classes is -1, and class_names has 0"),
    ],
)
def test_a_manifest_with_arrays_that_nothing_reads_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    folder = write(tmp_path / "out", NUMBERS.astype(np.float32), CLASSES)
    text = (Path(folder) / "manifest.json").read_text()
    content = json.loads(text)
    content["spec"] |= change
    with pytest.raises(DataError, match=message):
        parse_manifest(json.dumps(content), "manifest.json")


def test_not_a_number_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    values = NUMBERS.astype(np.float32)
    values[3] = np.nan
    with pytest.raises(InputError, match=r"features has NaN or infinity in 1 examples.* number 3"):
        write(tmp_path / "out", values, CLASSES)
    assert not (tmp_path / "out").exists()


def test_bytes_of_another_length_than_the_manifests_are_no_other_examples(tmp_path: Path) -> None:
    folder = write(tmp_path / "out", NUMBERS.astype(np.float32), CLASSES)
    path = Path(folder) / "manifest.json"
    content = json.loads(path.read_text())
    content["spec"]["shape"] = [3]
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match="convert the dataset again"):
        inspect(folder)


@pytest.mark.parametrize("weight", [math.nan, math.inf, -1.0])
def test_a_weight_in_a_file_that_is_no_number_from_0_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weight: float
) -> None:
    # Another program's file: ours writes none.
    monkeypatch.setattr(
        "tpu_training.data.conversion._serialise",
        lambda fields: _serialise(fields | {"weight": [weight]}),
    )
    folder = write(tmp_path / "out", NUMBERS.astype(np.float32), CLASSES, WEIGHTS)
    with pytest.raises(DataError, match="a weight is out of range in the dataset data"):
        inspect(folder)


@pytest.mark.parametrize("part", ["features", "targets"])
def test_nan_in_a_file_of_another_program_is_found_as_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    import tensorflow as tf

    array = np.full(NUMBERS.shape[1:], np.nan, np.float32)
    nan = {"features": array.tobytes(), "targets": [math.nan]}
    monkeypatch.setattr(
        "tpu_training.data.conversion._serialise",
        lambda fields: _serialise(fields | {part: nan[part]}),
    )
    folder = write(tmp_path / "out", NUMBERS.astype(np.float32), np.arange(COUNT) / 2)
    rows = training_rows(open_data(folder), Params(global_batch_size=4), 0, 1, 0)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        next(iter(rows))
    told = translate(caught.value)
    assert f"NaN or infinity in {part}" in str(told)
    assert "replace these values" in str(told)
    with pytest.raises(DataError, match=f"NaN or infinity in {part}"):
        inspect(folder)


def test_an_empty_axis_and_weights_for_a_test_alone_are_refused(tmp_path: Path) -> None:
    empty = {"x": NUMBERS, "more": np.zeros((COUNT, 0))}
    with pytest.raises(InputError, match=r"features/more has the shape \(24, 0\), and so no value"):
        write(tmp_path / "out", empty, CLASSES)
    with pytest.raises(InputError, match="split test has weights, split train none"):
        tpu_training.write_data(
            str(tmp_path / "out"), train=(NUMBERS, CLASSES), test=(NUMBERS, CLASSES, WEIGHTS)
        )


def test_rows_of_different_lengths_are_told_of(tmp_path: Path) -> None:
    rows = [[1, 2], [3]] * (COUNT // 2)
    with pytest.raises(InputError, match="features: its rows have different lengths or types"):
        write(tmp_path / "out", rows, CLASSES)
    with pytest.raises(InputError, match="targets: its rows have different lengths or types"):
        write(tmp_path / "out", NUMBERS, rows)
    # Before `fit` writes them.
    assert not arrays.fit_files((np.zeros((COUNT, 4, 4), np.uint8), rows))


def test_weights_stay_with_their_masks_through_an_augmentation(tmp_path: Path) -> None:
    images = RANDOM.integers(0, 255, (COUNT, 4, 4, 1)).astype(np.uint8)
    masks = RANDOM.integers(0, 3, (COUNT, 4, 4)).astype(np.uint8)
    data = open_data(write(tmp_path / "out", images, masks, WEIGHTS))
    params = Params(global_batch_size=COUNT, augmentation="pad_crop_flip", cache="memory")
    made, (classes, weights) = next(iter(training_rows(data, params, 0, 1, 0)))
    assert (made.shape, classes.shape) == ((COUNT, 4, 4, 1), (COUNT, 4, 4))
    assert sorted(weights.numpy()) == sorted(WEIGHTS)


def test_images_with_several_targets_are_trained_from_memory() -> None:
    images = np.zeros((COUNT, 4, 4, 1), np.uint8)
    assert arrays.fit_files((images, CLASSES))
    assert not arrays.fit_files((images, {"kind": CLASSES}))
