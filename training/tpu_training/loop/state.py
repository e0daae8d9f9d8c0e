"""The state of a training: model, optimizer and step."""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.manifest import Manifest
from tpu_training.loop.graphs import with_autograph
from tpu_training.loop.optimizers.base import Optimizer
from tpu_training.loop.optimizers.create import create_optimizer
from tpu_training.loop.optimizers.schedules import create_schedule
from tpu_training.loop.seeds import derive_seed
from tpu_training.models.losses import softmax_cross_entropy
from tpu_training.models.params import Params
from tpu_training.models.registry import Losses, ModelDefinition


@dataclass(frozen=True)
class TrainState:
    """The variables of a training job, mirrored over the cluster's replicas.

    `forward` maps (features, training) to logits in a graph, with AutoGraph if the model needs it.
    `losses` is the loss function; see models/losses.py.
    """

    model: tf.Module
    optimizer: Optimizer
    step: tf.Variable
    losses: Losses
    forward: Callable[..., tf.Tensor]


def create_train_state(
    cluster: Cluster,
    definition: ModelDefinition,
    params: Params,
    manifest: Manifest,
    steps: int,
) -> TrainState:
    """Initialise the state on the cluster's devices, for a run of `steps` steps."""
    schedule = create_schedule(params, steps)
    resolved = dataclasses.replace(params, precision=compute_dtype(params, cluster).name)
    with cluster.strategy.scope():
        model = definition.create_model(
            resolved, manifest.input_spec(params.image_size), derive_seed(params.seed, "weights")
        )
        optimizer = create_optimizer(params, model.trainable_variables, schedule)
        step = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="step",
        )
    losses = definition.losses or softmax_cross_entropy
    if definition.own:
        return TrainState(model, optimizer, step, with_autograph(losses), with_autograph(model))
    return TrainState(model, optimizer, step, losses, model)


def total_steps(params: Params, manifest: Manifest) -> int:
    """Return the number of whole batches in all epochs, at least 1."""
    examples = params.epochs * manifest.split("train").examples
    return max(1, math.floor(examples / params.global_batch_size))


def compute_dtype(params: Params, cluster: Cluster) -> tf.DType:
    """Return the type of the model's arithmetic: bfloat16 is fast on TPUs and slow on CPUs."""
    if params.precision == "auto":
        return tf.bfloat16 if cluster.has_tpu else tf.float32
    return tf.dtypes.as_dtype(params.precision)
