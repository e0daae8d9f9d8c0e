"""Predict with a SavedModel on this machine: arrays, a data set, image files."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.data import files
from tpu_training.data.data_set import open_data
from tpu_training.data.manifest import FILE_NAME
from tpu_training.errors import DataError, InputError
from tpu_training.errors.catalog import describe
from tpu_training.models.params import Params
from tpu_training.serving.export import SIGNATURE
from tpu_training.serving.model import test_examples

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class TensorInfo:
    """A tensor of the signature; None in its shape stands for any size."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


class Predictor:
    """The newest version of a SavedModel. Thread-safe."""

    def __init__(self, saved_model: str) -> None:
        """Load the directory `saved_model`, or the highest of the numbered directories in it.

        Raises:
            InputError: There is no SavedModel, or its signature does not have exactly one input.
        """
        path, self.version = _newest(saved_model)
        try:
            self._loaded = tf.saved_model.load(path)
        except (OSError, tf.errors.OpError) as error:
            raise InputError(f"--saved-model={path}: can't be loaded ({error})") from error
        signature = self._loaded.signatures.get(SIGNATURE)
        inputs = signature.structured_input_signature[1] if signature else {}
        if not signature or len(inputs) != 1:
            raise InputError(
                f"--saved-model={path}: expected a signature {SIGNATURE} with one input; write it "
                "with `tpu-training export`"
            )
        self._signature = signature
        self.input, *self.outputs = (
            TensorInfo(name, spec.dtype.name, tuple(spec.shape.as_list()))
            for tensors in (inputs, signature.structured_outputs)
            for name, spec in sorted(tensors.items())
        )

    @property
    def example_shape(self) -> tuple[int | None, ...]:
        """The shape of one example."""
        return self.input.shape[1:]

    def predict(self, features: Array) -> Mapping[str, Array]:
        """Map (examples, …) to each output's (examples, …).

        A model with a fixed batch size gets batches of it, the last one padded; any other gets all
        examples at once.

        Raises:
            ValueError: An example has the wrong shape, or a token is not in the vocabulary.
        """
        expected = self.example_shape
        shape = features.shape[1:]
        fits = len(shape) == len(expected) and all(
            size in (None, given) for given, size in zip(shape, expected, strict=True)
        )
        if not features.ndim or not fits:
            raise ValueError(f"an example has the shape {shape}, the model takes {expected}")
        try:
            parts = [self._run(part, filling) for part, filling in self._batches(features)]
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(describe(error)) from error
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _batches(self, features: Array) -> Iterator[tuple[Array, int]]:
        size = self.input.shape[0]
        if size is None:
            yield features, 0
            return
        for begin in range(0, len(features), size):
            # The last example is repeated: any other filling might not be valid input.
            part = features[begin : begin + size]
            filling = size - len(part)
            yield np.concatenate([part, np.repeat(part[-1:], filling, axis=0)]), filling

    def _run(self, features: Array, filling: int) -> dict[str, Array]:
        tensor = tf.constant(features, dtype=self.input.dtype)
        outputs = self._signature(**{self.input.name: tensor})
        count = len(features) - filling
        return {name: _values(output)[:count] for name, output in outputs.items()}


def _newest(saved_model: str) -> tuple[str, str]:
    """Return the path to load and its version, the folder's name as in TensorFlow Serving."""
    base = saved_model.rstrip("/")
    files.check_bucket(saved_model, "--saved-model")
    try:
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(base)]
    except (OSError, tf.errors.OpError) as error:
        raise InputError(f"--saved-model={saved_model}: there is no such directory") from error
    if "saved_model.pb" in names:
        name = base.rpartition("/")[2]
        return base, name if name.isdigit() else "1"
    versions = sorted((int(name) for name in names if name.isdigit()), reverse=True)
    if not versions:
        raise InputError(
            f"--saved-model={saved_model}: contains neither a saved_model.pb nor a numbered "
            "version; write one with `tpu-training export`"
        )
    return f"{base}/{versions[0]}", str(versions[0])


def _values(output: tf.Tensor) -> Array:
    values: Array = output.numpy()
    return np.char.decode(values.astype(bytes), "utf-8") if output.dtype == tf.string else values


_BATCH = 256
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


@dataclass(frozen=True)
class _Batch:
    """Named examples, with their labels if known."""

    names: list[str]
    features: Array
    labels: list[Any] | None
    class_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The number of predictions written, and the accuracy if labels are known."""

    examples: int
    accuracy: float | None


def predict_to_file(predictor: Predictor, inputs: Sequence[str], output: str) -> Outcome:
    """Write a line per example of `inputs` to `output`, as JSONL if it ends so, else as CSV.

    `inputs` is the directory of a data set, whose test split is used, or image files and folders.

    Raises:
        InputError: There is nothing to predict.
    """
    manifest = f"{inputs[0].rstrip('/')}/{FILE_NAME}"
    if len(inputs) == 1 and tf.io.gfile.isdir(inputs[0]) and files.size(manifest) is not None:
        batches = _data_set(predictor, inputs[0])
    else:
        batches = _image_files(predictor, inputs)
    rows: list[dict[str, Any]] = []
    right, labelled = 0, False
    for batch in batches:
        try:
            outputs = predictor.predict(batch.features)
        except ValueError as error:
            raise DataError(f"{batch.names[0]}: {error}") from error
        rows += _rows(batch, outputs)
        of_classes = _gives_classes(outputs)
        if not of_classes and not output.endswith(".jsonl"):
            raise InputError(
                f"--output={output}: the model gives more than a class for each example; name a "
                ".jsonl file"
            )
        labelled = of_classes and batch.labels is not None
        right += int((outputs["classes"] == batch.labels).sum()) if labelled else 0
    if not rows:
        raise InputError(f"--input={' '.join(inputs)}: contains nothing to predict")
    as_json = output.endswith(".jsonl")
    text = "".join(json.dumps(row) + "\n" for row in rows) if as_json else _as_csv(rows)
    files.write_text(output, text)
    return Outcome(len(rows), right / len(rows) if labelled else None)


def _rows(batch: _Batch, outputs: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    """Yield what is known of each example; names only where there are some."""
    if not _gives_classes(outputs):
        values = {name: array.tolist() for name, array in outputs.items()}
        if batch.labels is not None:
            values["targets"] = batch.labels
        for number, example in enumerate(batch.names):
            yield {"example": example} | {name: each[number] for name, each in values.items()}
        return
    probabilities = outputs["probabilities"].tolist()
    for number, found in enumerate(outputs["classes"].tolist()):
        row = {"example": batch.names[number], "class": found}
        if "names" in outputs:
            row["name"] = str(outputs["names"][number])
        row["probabilities"] = probabilities[number]
        if batch.labels is not None:
            label = row["label"] = batch.labels[number]
            if batch.class_names:
                row["label_name"] = batch.class_names[label]
        yield row


def _gives_classes(outputs: Mapping[str, Array]) -> bool:
    return "classes" in outputs and outputs["classes"].ndim == 1


def _as_csv(rows: list[dict[str, Any]]) -> str:
    """Write a table with the probability of the predicted class alone."""
    names = ["example", "class", "name", "probability", "label", "label_name"]
    named = any(name in rows[0] for name in ("name", "label_name"))
    columns = names if named else [name for name in names if not name.endswith("name")]
    text = io.StringIO()
    table = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for row in rows:
        table.writerow(row | {"probability": f"{row['probabilities'][row['class']]:.6f}"})
    return text.getvalue()


def _data_set(predictor: Predictor, directory: str) -> Iterator[_Batch]:
    data, position = open_data(directory), 0
    is_image = data.manifest.spec.kind == "image"
    # Images are resized to the model's size as in an evaluation.
    params = Params(image_size=_image_shape(predictor)[0] if is_image else 0)
    for batch in test_examples(data, params, _BATCH):
        names = [f"test/{position + i}" for i in range(len(batch.labels))]
        position += len(names)
        yield _Batch(names, batch.features, batch.labels.tolist(), data.manifest.class_names)


def _image_files(predictor: Predictor, inputs: Sequence[str]) -> Iterator[_Batch]:
    height, width, channels = _image_shape(predictor)
    paths = list(_paths(inputs))
    for begin in range(0, len(paths), _BATCH):
        part = paths[begin : begin + _BATCH]
        images = [_read_image(path, height, width, channels) for path in part]
        yield _Batch(part, np.stack(images), None)


def _image_shape(predictor: Predictor) -> tuple[int, int, int]:
    shape = [size for size in predictor.example_shape if size is not None]
    if len(shape) != 3:
        raise InputError(
            f"--input: the model takes {predictor.input.name} of the shape "
            f"{predictor.example_shape}, not images; give a data set of that form"
        )
    return shape[0], shape[1], shape[2]


def _paths(inputs: Iterable[str]) -> Iterator[str]:
    """Yield the image files, those of a folder sorted by name."""
    for value in inputs:
        if tf.io.gfile.isdir(value):
            names = (f"{at.rstrip('/')}/{n}" for at, _, ns in tf.io.gfile.walk(value) for n in ns)
            yield from sorted(name for name in names if name.lower().endswith(_IMAGE_ENDINGS))
        elif files.size(value) is None:
            raise InputError(f"--input={value}: there is no such file")
        else:
            yield value


def _read_image(path: str, height: int, width: int, channels: int) -> Array:
    """Decode an image and scale all of it to the model's size."""
    try:
        image = tf.io.decode_image(files.read_bytes(path), channels, expand_animations=False)
    except tf.errors.OpError as error:
        raise DataError(f"{path}: is not an image that TensorFlow can read") from error
    if tuple(image.shape[:2]) != (height, width):
        image = tf.image.resize(image, (height, width), antialias=True)
        image = tf.cast(tf.round(tf.clip_by_value(image, 0.0, 255.0)), tf.uint8)
    pixels: Array = image.numpy()
    return pixels
