"""A trained model on this machine's CPU: restored from its directory, or as it was exported.

Predicts with the exported one, for a dataset or image files.
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training import errors, tasks
from tpu_training.checkpoints import model_description, reader
from tpu_training.cluster.cluster import Cluster
from tpu_training.data import data_set, files, pipeline
from tpu_training.data.manifest import FILE_NAME
from tpu_training.loop import evaluation
from tpu_training.loop.state import ModelState, create_model_state
from tpu_training.models import model, registry
from tpu_training.models.params import Params
from tpu_training.models.spec import CLASS, DataSpec, Task

SIGNATURE = "serving_default"
_INPUT_NAMES = {"image": "images", "text": "token_ids", "array": "features"}

Array = npt.NDArray[Any]


def this_machine() -> Cluster:
    """Return a cluster of one replica on this machine's CPU."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return Cluster(strategy, "", None, has_tpu=False)


@dataclass(frozen=True)
class RestoredModel:
    """A model with the weights of `checkpoint`, written after `step` steps."""

    module: tf.Module
    definition: registry.ModelDefinition
    task: Task
    description: model_description.ModelDescription
    params: Params
    checkpoint: str
    step: int

    @property
    def spec(self) -> DataSpec:
        """The spec of what it takes and gives."""
        return self.task.model_spec(self.description.spec)

    def input_spec(self, batch: int | None, dtype: str | None = None) -> tf.TensorSpec:
        """Return the spec of the input: `batch` examples, None for any number."""
        if self.spec.inputs:
            raise errors.InputError(
                "the model takes several inputs, and an exported one has a single input so far; "
                "predict with tpu_training.load(model_dir)"
            )
        shape = (batch, *self.spec.shape)
        return tf.TensorSpec(shape, dtype or self.spec.dtype, name=_INPUT_NAMES[self.spec.kind])

    def predict(self, features: Any) -> dict[str, tf.Tensor]:
        """Return what the task makes of the outputs.

        For classes: `probabilities`, float32 (batch, classes), and `classes`, int32 (batch,).
        Raises InputError for arrays that are not like the dataset's.
        """
        if not tf.is_tensor(features):
            features = evaluation.features_of(features, self.description.spec)
        return dict(self.task.predictions(self.module(features, training=False)))

    def evaluate(self, data: Any) -> dict[str, float]:
        """Return loss and metrics over `data`; see tpu_training.evaluate."""
        spec = self.description.spec
        return evaluation.evaluate_given(this_machine(), self.params, self._state, spec, data)

    def predict_all(self, features: Any) -> dict[str, Array]:
        """Return what `predict` does as arrays, compiled and in batches; of any number of them."""
        spec = self.description.spec
        return evaluation.create_prediction(this_machine(), self.params, self._state, spec)(
            features
        )

    @cached_property
    def _state(self) -> ModelState:
        made = (self.definition, self.module, self.task, self.description.spec)
        return create_model_state(*made)


def restore_model(
    model_dir: str, given: str | registry.ModelDefinition | None = None, best: bool = False
) -> RestoredModel:
    """Build the model that `model_dir` describes and restore its newest complete checkpoint.

    Args:
        model_dir: The results of a training.
        given: The new location of a user's model file, if it was moved; or the model itself.
        best: Restore the checkpoint of the best evaluation instead.

    Raises:
        InputError: There is no checkpoint.
        CheckpointError: The checkpoint belongs to another model.
    """
    description = model_description.read_description(model_dir)
    definition, params = description.definition(model_dir, given)
    # Export targets compute in float32, even if the training used bfloat16.
    params = dataclasses.replace(params, precision="float32")
    task = tasks.task_of(definition, description.spec)
    spec = task.model_spec(description.spec)
    module = model.create_model(definition, params, spec, params.seed)
    step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
    checkpoint = tf.train.Checkpoint(model=module, step=step)
    path = reader.newest_whole(f"{model_dir.rstrip('/')}/{'best' if best else 'checkpoints'}")
    if path is None:
        what = "no best checkpoint" if best else "no checkpoint"
        raise errors.InputError(f"--model-dir={model_dir}: contains {what}; train first")
    reader.restore(checkpoint, path, this_machine().this_process)
    reader.restore_averages(module, path)
    return RestoredModel(module, definition, task, description, params, path, int(step.numpy()))


@dataclass(frozen=True)
class LabelledBatch:
    """Features (batch, …) from the input pipeline, and labels, int32 (batch,)."""

    features: npt.NDArray[np.generic]
    labels: npt.NDArray[np.int32]


def training_examples(data: data_set.DataSet, params: Params, count: int) -> list[LabelledBatch]:
    """Return about `count` examples of the training set in one batch."""
    with tf.device("/cpu:0"):
        next_batch = pipeline.training_batches(
            data, this_machine(), dataclasses.replace(params, global_batch_size=count)
        )
        features, labels = next_batch()
    return [LabelledBatch(features.numpy(), labels.numpy())]


def test_examples(data: data_set.DataSet, params: Params, batch: int) -> Iterator[LabelledBatch]:
    """Yield every test example once, in order, in batches of at most `batch`."""
    params = dataclasses.replace(params, evaluation_batch_size=batch)
    next_batch, steps = pipeline.evaluation_batches(data, this_machine(), params)
    for _ in range(steps):
        features, labels, weights = (part.numpy() for part in next_batch())
        real = weights > 0
        yield LabelledBatch(features[real], labels[real])


class Predictor:
    """The newest version of a SavedModel; `input` is the spec of its signature's one input."""

    def __init__(self, saved_model: str) -> None:
        """Load the directory `saved_model`, or the highest of the numbered directories in it.

        Raises:
            InputError: There is no SavedModel, or its signature does not have exactly one input.
        """
        path = _newest(saved_model)
        try:
            self._loaded = tf.saved_model.load(path)
        except (OSError, tf.errors.OpError) as error:
            raise errors.InputError(f"--saved-model={path}: can't be loaded ({error})") from error
        signature = self._loaded.signatures.get(SIGNATURE)
        inputs = signature.structured_input_signature[1] if signature else {}
        if not signature or len(inputs) != 1:
            raise errors.InputError(
                f"--saved-model={path}: expected a signature {SIGNATURE} with one input; write it "
                "with `tpu-training export`"
            )
        self._signature = signature
        ((self.name, self.input),) = inputs.items()

    @property
    def example_shape(self) -> tuple[int | None, ...]:
        """The shape of one example; None stands for any size."""
        return tuple(self.input.shape[1:])

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
            raise ValueError(f"an example has the shape {shape}, but the model takes {expected}")
        try:
            parts = [self._run(part, filling) for part, filling in self._batches(features)]
        except tf.errors.InvalidArgumentError as error:
            raise ValueError(errors.describe(error)) from error
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _batches(self, features: Array) -> Iterator[tuple[Array, int]]:
        """Yield `features` in batches of the size that the model takes, and how much is filling."""
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
        outputs = self._signature(**{self.name: tensor})
        count = len(features) - filling
        return {name: _values(output)[:count] for name, output in outputs.items()}


def _newest(saved_model: str) -> str:
    """Return the path to load: the folder itself, or the highest number in it."""
    base = saved_model.rstrip("/")
    files.check_bucket(saved_model, "--saved-model")
    try:
        names = [name.rstrip("/") for name in tf.io.gfile.listdir(base)]
    except (OSError, tf.errors.OpError) as error:
        raise errors.InputError(
            f"--saved-model={saved_model}: there is no such directory"
        ) from error
    if "saved_model.pb" in names:
        return base
    versions = [int(name) for name in names if name.isdigit()]
    if not versions:
        raise errors.InputError(
            f"--saved-model={saved_model}: contains neither a saved_model.pb nor a numbered "
            "version; write one with `tpu-training export`"
        )
    return f"{base}/{max(versions)}"


def _values(output: tf.Tensor) -> Array:
    values: Array = output.numpy()
    return np.char.decode(values.astype(bytes), "utf-8") if output.dtype == tf.string else values


_BATCH = 256
_IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif")


@dataclass(frozen=True)
class _Batch:
    """Named examples, with what their lines say of the targets if these are known."""

    names: list[str]
    features: Array
    targets: dict[str, list[Any]]


def predict_to_file(
    predictor: Predictor, inputs: Sequence[str], output: str
) -> tuple[int, float | None]:
    """Write a JSON line per example of `inputs` to `output`.

    `inputs` is the directory of a dataset, whose test split is used, or image files and folders.
    Returns the number of examples, and the accuracy if they have classes that are known.

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
            raise errors.DataError(f"{batch.names[0]}: {error}") from error
        rows += _rows(batch, outputs)
        of_classes = "classes" in outputs and outputs["classes"].ndim == 1
        labelled = of_classes and "targets" in batch.targets
        right += int((outputs["classes"] == batch.targets["targets"]).sum()) if labelled else 0
    if not rows:
        raise errors.InputError(f"--input={' '.join(inputs)}: contains nothing to predict")
    files.write_text(output, "".join(json.dumps(row) + "\n" for row in rows))
    return len(rows), right / len(rows) if labelled else None


def _rows(batch: _Batch, outputs: Mapping[str, Array]) -> Iterator[dict[str, Any]]:
    """Yield each example's outputs by their names, and its targets if they are known."""
    values = {name: array.tolist() for name, array in outputs.items()} | batch.targets
    for number, example in enumerate(batch.names):
        yield {"example": example} | {name: each[number] for name, each in values.items()}


def _data_set(predictor: Predictor, directory: str) -> Iterator[_Batch]:
    """Yield the test split of a dataset, whose targets are known."""
    data, position = data_set.open_data(directory), 0
    spec, class_names = data.manifest.spec, data.manifest.class_names
    is_image = spec.kind == "image"
    # Images are resized to the model's size as in an evaluation.
    params = Params(image_size=_image_shape(predictor)[0] if is_image else 0)
    for batch in test_examples(data, params, _BATCH):
        names = [f"test/{position + i}" for i in range(len(batch.labels))]
        position += len(names)
        targets = {"targets": batch.labels.tolist()}
        if class_names and spec.targets == CLASS:
            targets["target_names"] = [class_names[number] for number in batch.labels]
        yield _Batch(names, batch.features, targets)


def _image_files(predictor: Predictor, inputs: Sequence[str]) -> Iterator[_Batch]:
    """Yield image files; at most one batch of them is decoded at a time."""
    height, width, channels = _image_shape(predictor)
    paths = list(_paths(inputs))
    for begin in range(0, len(paths), _BATCH):
        part = paths[begin : begin + _BATCH]
        images = [_read_image(path, height, width, channels) for path in part]
        yield _Batch(part, np.stack(images), {})


def _image_shape(predictor: Predictor) -> tuple[int, int, int]:
    """Return height, width and channels of an example. Raises InputError for other inputs."""
    shape = [size for size in predictor.example_shape if size is not None]
    if len(shape) != 3:
        raise errors.InputError(
            f"--input: the model takes {predictor.name} of the shape {predictor.example_shape}, "
            "not images; pass a dataset of that form"
        )
    return shape[0], shape[1], shape[2]


def _paths(inputs: Iterable[str]) -> Iterator[str]:
    """Yield the image files, those of a folder sorted by name."""
    for value in inputs:
        if tf.io.gfile.isdir(value):
            names = (f"{at.rstrip('/')}/{n}" for at, _, ns in tf.io.gfile.walk(value) for n in ns)
            yield from sorted(name for name in names if name.lower().endswith(_IMAGE_ENDINGS))
        elif files.size(value) is None:
            raise errors.InputError(f"--input={value}: there is no such file")
        else:
            yield value


def _read_image(path: str, height: int, width: int, channels: int) -> Array:
    """Decode an image and scale all of it to the model's size."""
    try:
        image = tf.io.decode_image(files.read_bytes(path), channels, expand_animations=False)
    except tf.errors.OpError as error:
        raise errors.DataError(f"{path}: is not an image that TensorFlow can read") from error
    if tuple(image.shape[:2]) != (height, width):
        image = tf.image.resize(image, (height, width), antialias=True)
        image = tf.cast(tf.round(tf.clip_by_value(image, 0.0, 255.0)), tf.uint8)
    pixels: Array = image.numpy()
    return pixels
