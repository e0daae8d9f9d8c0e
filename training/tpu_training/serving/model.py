"""A trained model on this machine's CPU, restored from its directory."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training import errors, tasks
from tpu_training.checkpoints import model_description, reader
from tpu_training.checkpoints.initial_weights import load_initial_weights
from tpu_training.cluster.cluster import Cluster
from tpu_training.data import data_set, files, pipeline
from tpu_training.loop import evaluation
from tpu_training.loop.optimizers import choose_variables
from tpu_training.loop.state import ModelState, create_model_state, derive_seed
from tpu_training.models import model, registry
from tpu_training.models.params import TRAINED, Params
from tpu_training.models.spec import DataSpec, Task
from tpu_training.models.step_context import split_weights

SIGNATURE = "serving_default"
_INPUT_NAMES = {"image": "images", "text": "token_ids", "array": "features"}

Array = npt.NDArray[Any]


def this_machine() -> Cluster:
    """Return a cluster of one replica on this machine's CPU."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return Cluster(strategy, "", None, has_tpu=False)


@dataclass(frozen=True)
class RestoredModel:
    """A model with the weights of `checkpoint`, written after `step` steps.

    `vocabulary` has the name and content of its tokenizer's file, for texts.
    """

    module: tf.Module
    definition: registry.ModelDefinition
    task: Task
    description: model_description.ModelDescription
    params: Params
    checkpoint: str
    step: int
    vocabulary: tuple[str, bytes] = ("", b"")

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

        For classes: `probabilities`, float32 (batch, classes), and `classes`, int32 (batch,). A
        tensor goes to the model as it is, arrays and texts as in an evaluation. Raises InputError
        for what is not like the dataset's.
        """
        if not tf.is_tensor(features):
            return {name: tf.constant(each) for name, each in self.predict_all(features).items()}
        return dict(self.task.predictions(self.module(features, training=False)))

    def evaluate(self, data: Any) -> dict[str, float]:
        """Return loss and metrics over `data`; see tpu_training.evaluate."""
        spec = self.description.spec
        return evaluation.evaluate_given(this_machine(), self.params, self._state, spec, data)

    def predict_all(self, features: Any) -> dict[str, Array]:
        """Return what `predict` does as arrays, compiled and in batches.

        `features` may also be a dataset's place: then of its test split.
        """
        if not isinstance(features, str):
            return self._predict(features)
        data = data_set.open_given(features, self.params.seed)
        batches = test_examples(data, self.params, self.params.evaluation_batch_size)
        return evaluation.joined([self._predict(each.features) for each in batches])

    @cached_property
    def _predict(self) -> evaluation.Predict:
        made = (this_machine(), self.params, self._state, self.description.spec)
        return evaluation.create_prediction(*made, self.vocabulary)

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
    module = model.create_model(definition, params, spec, derive_seed(params.seed, "weights"))
    # Nothing of a model that is only loaded need be trainable.
    trained_alone = params.checkpoint_weights == TRAINED
    unsaved = choose_variables(params, module).unsaved if trained_alone else ()
    if unsaved:
        load_initial_weights(this_machine(), params, module)
    step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
    checkpoint = reader.without(tf.train.Checkpoint(model=module, step=step), unsaved)
    path = _checkpoint(model_dir, best)
    reader.refuse_another_base(path, reader.digest_of(unsaved))
    reader.restore(checkpoint, path, this_machine().this_process)
    reader.restore_averages(module, path)
    # A path could lead an export out of its folder.
    name = description.vocabulary.rpartition("/")[2]
    tokens = (name, files.read_bytes(f"{model_dir.rstrip('/')}/{name}") if name else b"")
    made = (module, definition, task, description, params, path, int(step.numpy()))
    return RestoredModel(*made, tokens)


def _checkpoint(model_dir: str, best: bool) -> str:
    """Return the path of the newest checkpoint, or of the best one. Raises InputError."""
    folder = model_dir.rstrip("/")
    path = reader.newest_whole(f"{folder}/{'best' if best else 'checkpoints'}")
    if path:
        return path
    newest = best and reader.newest_whole(f"{folder}/checkpoints")
    if not newest:
        raise errors.InputError(f"--model-dir={model_dir}: contains no checkpoint; train first")
    raise errors.InputError(
        f"--model-dir={model_dir}: contains no best checkpoint, but the newest, {newest}; omit "
        "--best (best=True) to take that one, or train with a validation split, such as "
        "--validation_fraction=0.1"
    )


@dataclass(frozen=True)
class LabelledBatch:
    """Features (batch, …) from the input pipeline, and their targets; by name if several."""

    features: Any
    labels: Any


def training_images(data: data_set.DataSet, params: Params, count: int) -> Array:
    """Return about `count` images of the training set."""
    params = dataclasses.replace(params, global_batch_size=count)
    with tf.device("/cpu:0"):
        images, _ = pipeline.training_batches(data, this_machine(), params)()
    return np.asarray(images)


def test_examples(data: data_set.DataSet, params: Params, batch: int) -> Iterator[LabelledBatch]:
    """Yield every test example once, in order, in batches of at most `batch`."""
    params = dataclasses.replace(params, evaluation_batch_size=batch)
    next_batch, steps = pipeline.evaluation_batches(data, this_machine(), params)
    for _ in range(steps):
        features, labels, weights = next_batch()
        kept = partial(tf.boolean_mask, mask=weights > 0)
        parts = tf.nest.map_structure(kept, (features, split_weights(labels)[0]))
        yield LabelledBatch(*tf.nest.map_structure(np.asarray, parts))
