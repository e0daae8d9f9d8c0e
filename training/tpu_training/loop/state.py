"""The state of a training: model, optimizer and step."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.manifest import Manifest
from tpu_training.loop.averaging import WeightAverage
from tpu_training.loop.graphs import with_autograph
from tpu_training.loop.mixing import Mix, create_mix
from tpu_training.loop.optimizers.base import Optimizer
from tpu_training.loop.optimizers.choice import choose_variables, creations
from tpu_training.loop.optimizers.create import create_optimizer
from tpu_training.loop.optimizers.keras import compiled_optimizer
from tpu_training.loop.optimizers.schedules import create_schedule
from tpu_training.loop.seeds import derive_seed
from tpu_training.loop.tally import Tally, create_tally
from tpu_training.models.keras import KerasModule
from tpu_training.models.keras_task import compiled_task
from tpu_training.models.model import check_model, checked_forward, checked_losses, create_model
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition
from tpu_training.models.task import Losses, Prepare, Task
from tpu_training.tasks import task_of


@dataclass(frozen=True)
class TrainState:
    """The variables of a training job, mirrored over the cluster's replicas.

    `variables` are those of the model that are trained, at `paths`; the ids of those that must
    keep their values are in `frozen`. If the job wants that, `average` follows them and `mix`
    mixes examples.
    `forward` maps (features, training) to outputs in a graph, with AutoGraph if the model needs it.
    `losses` and `prepare` are the task's, and `counted` and `evaluated` count its metrics in
    training and in evaluations; see models/task.py.
    """

    model: tf.Module
    optimizer: Optimizer
    step: tf.Variable
    losses: Losses
    forward: Callable[..., tf.Tensor]
    task: Task
    prepare: Prepare
    counted: Tally
    evaluated: Tally
    variables: Sequence[tf.Variable]
    paths: Sequence[str]
    frozen: frozenset[int] = frozenset()
    average: WeightAverage | None = None
    mix: Mix | None = None


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
    data_spec = manifest.input_spec(params.image_size)
    task = task_of(definition, data_spec)
    spec = task.model_spec(data_spec)
    with cluster.strategy.scope():
        with creations() as order:
            model = create_model(definition, resolved, spec, derive_seed(params.seed, "weights"))
        check_model(model, definition.create_model)
        chosen = choose_variables(params, model, order)
        optimizer = compiled_optimizer(params, model, chosen.trained) or create_optimizer(
            params, chosen, schedule
        )
        decay = params.ema_decay
        average = WeightAverage(model, chosen.frozen, decay) if decay else None
        step = tf.Variable(
            0,
            dtype=tf.int64,
            trainable=False,
            aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA,
            name="step",
        )
    if isinstance(model, KerasModule):
        task = compiled_task(task, model, data_spec, named=bool(definition.task))
        model.freeze(chosen.frozen)
    losses = definition.losses or task.losses
    forward = model
    if definition.own and not isinstance(model, KerasModule):
        forward = checked_forward(with_autograph(model), model, spec)
    if (definition.losses and definition.own) or task.own:
        losses = checked_losses(with_autograph(losses), losses)
    return TrainState(
        model,
        optimizer,
        step,
        losses,
        forward,
        task,
        task.prepare(data_spec) if task.prepare else _unchanged,
        create_tally(task, data_spec, spec, training=True),
        create_tally(task, data_spec, spec, training=False),
        chosen.trained,
        chosen.paths,
        chosen.frozen,
        average,
        create_mix(params, data_spec),
    )


def _unchanged(
    features: tf.Tensor, targets: tf.Tensor, training: bool
) -> tuple[tf.Tensor, tf.Tensor]:
    return features, targets


def total_steps(params: Params, manifest: Manifest) -> int:
    """Return the number of whole batches in all epochs, at least 1."""
    examples = params.epochs * manifest.split("train").examples
    return max(1, math.floor(examples / params.global_batch_size))


def compute_dtype(params: Params, cluster: Cluster) -> tf.DType:
    """Return the type of the model's arithmetic: bfloat16 is fast on TPUs and slow on CPUs."""
    if params.precision == "auto":
        return tf.bfloat16 if cluster.has_tpu else tf.float32
    return tf.dtypes.as_dtype(params.precision)
