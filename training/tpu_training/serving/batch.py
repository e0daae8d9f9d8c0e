"""`tpu-training predict`: write predictions for a data set or image files."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tpu_training.data import files
from tpu_training.data.data_set import open_data
from tpu_training.data.manifest import FILE_NAME
from tpu_training.errors import DataError, InputError
from tpu_training.models.params import Params
from tpu_training.serving.export.examples import test_examples
from tpu_training.serving.predictor import Array, Predictor

_BATCH = 256
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


@dataclass(frozen=True)
class _Batch:
    """Named examples, with their labels if known."""

    names: list[str]
    features: Array
    labels: list[int] | None


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
    batches = (
        _data_set(predictor, inputs[0]) if _is_data_set(inputs) else _image_files(predictor, inputs)
    )
    lines, right, examples, labelled = io.StringIO(), 0, 0, False
    as_json = output.endswith(".jsonl")
    rows = csv.writer(lines, lineterminator="\n")
    if not as_json:
        rows.writerow(["example", "class", "probability", "label"])
    for batch in batches:
        outputs = _predict(predictor, batch)
        classes, probabilities = outputs["classes"].tolist(), outputs["probabilities"]
        labels: Sequence[int | None] = batch.labels or [None] * len(classes)
        for name, found, each, label in zip(
            batch.names, classes, probabilities, labels, strict=True
        ):
            if as_json:
                row = {"example": name, "class": found, "probabilities": each.tolist()}
                lines.write(json.dumps(row if label is None else row | {"label": label}) + "\n")
            else:
                rows.writerow([name, found, f"{each[found]:.6f}", "" if label is None else label])
            right += found == label
        examples += len(classes)
        labelled = batch.labels is not None
    if not examples:
        raise InputError(f"--input={' '.join(inputs)}: contains nothing to predict")
    files.write_text(output, lines.getvalue())
    return Outcome(examples, right / examples if labelled else None)


def _predict(predictor: Predictor, batch: _Batch) -> dict[str, Array]:
    try:
        return dict(predictor.predict(batch.features))
    except ValueError as error:
        raise DataError(f"{batch.names[0]}: {error}") from error


def _is_data_set(inputs: Sequence[str]) -> bool:
    if len(inputs) != 1 or not tf.io.gfile.isdir(inputs[0]):
        return False
    return files.size(f"{inputs[0].rstrip('/')}/{FILE_NAME}") is not None


def _data_set(predictor: Predictor, directory: str) -> Iterator[_Batch]:
    data, position = open_data(directory), 0
    is_image = data.manifest.spec.kind == "image"
    # Images are resized to the model's size as in an evaluation.
    params = Params(image_size=_image_shape(predictor)[0] if is_image else 0)
    for batch in test_examples(data, params, _BATCH):
        names = [f"test/{position + i}" for i in range(len(batch.labels))]
        position += len(names)
        yield _Batch(names, batch.features, batch.labels.tolist())


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
