"""The trained model of a model directory, restored on this machine's CPU, and examples for it."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.checkpoints.model_description import ModelDescription, read_description
from tpu_training.checkpoints.reader import newest_whole, restore, restore_averages
from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.pipeline import evaluation_batches, training_batches
from tpu_training.errors import InputError
from tpu_training.models.model import create_model
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition
from tpu_training.models.spec import DataSpec
from tpu_training.models.task import Task
from tpu_training.tasks import task_of

_INPUT_NAMES = {"image": "images", "text": "token_ids"}


def this_machine() -> Cluster:
    """Return a cluster of one replica on this machine's CPU."""
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    return Cluster(strategy, "", None, has_tpu=False)


@dataclass(frozen=True)
class RestoredModel:
    """A model with the weights of `checkpoint`, written after `step` steps."""

    module: tf.Module
    task: Task
    description: ModelDescription
    params: Params
    checkpoint: str
    step: int

    @property
    def spec(self) -> DataSpec:
        """The spec of what it takes and gives."""
        return self.task.model_spec(self.description.spec)

    def input_spec(self, batch: int | None, dtype: str | None = None) -> tf.TensorSpec:
        """Return the spec of the input: `batch` examples, None for any number."""
        shape = (batch, *self.spec.shape)
        return tf.TensorSpec(shape, dtype or self.spec.dtype, name=_INPUT_NAMES[self.spec.kind])

    def predict(self, features: tf.Tensor) -> dict[str, tf.Tensor]:
        """Return what the task makes of the outputs.

        For classes: `probabilities`, float32 (batch, classes), and `classes`, int32 (batch,).
        """
        return dict(self.task.predictions(self.module(features, training=False)))


def restore_model(
    model_dir: str, given: str | ModelDefinition | None = None, best: bool = False
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
    description = read_description(model_dir)
    definition, params = description.definition(model_dir, given)
    # Export targets compute in float32, even if the training used bfloat16.
    params = dataclasses.replace(params, precision="float32")
    task = task_of(definition, description.spec)
    spec = task.model_spec(description.spec)
    module = create_model(definition, params, spec, params.seed)
    step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
    checkpoint = tf.train.Checkpoint(model=module, step=step)
    path = newest_whole(f"{model_dir.rstrip('/')}/{'best' if best else 'checkpoints'}")
    if path is None:
        what = "no checkpoint of a best evaluation" if best else "no checkpoint"
        raise InputError(f"--model-dir={model_dir}: contains {what}; train first")
    restore(checkpoint, path, this_machine().this_process)
    restore_averages(module, path)
    return RestoredModel(module, task, description, params, path, int(step.numpy()))


@dataclass(frozen=True)
class LabelledBatch:
    """Features (batch, …) from the input pipeline, and labels, int32 (batch,)."""

    features: npt.NDArray[np.generic]
    labels: npt.NDArray[np.int32]


def training_examples(data: DataSet, params: Params, count: int) -> list[LabelledBatch]:
    """Return about `count` examples of the training set in one batch."""
    with tf.device("/cpu:0"):
        next_batch = training_batches(
            data, this_machine(), dataclasses.replace(params, global_batch_size=count)
        )
        features, labels = next_batch()
    return [LabelledBatch(features.numpy(), labels.numpy())]


def test_examples(data: DataSet, params: Params, batch: int) -> Iterator[LabelledBatch]:
    """Yield every test example once, in order, in batches of at most `batch`."""
    params = dataclasses.replace(params, evaluation_batch_size=batch)
    next_batch, steps = evaluation_batches(data, this_machine(), params)
    for _ in range(steps):
        features, labels, weights = (part.numpy() for part in next_batch())
        real = weights > 0
        yield LabelledBatch(features[real], labels[real])
