"""Trace the trainer's real steps, as one replica of a TPU runs them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.compile.program.collectives import can_reduce, sum_over
from tpu_training.compile.program.refusals import untraceable
from tpu_training.data.manifest import Manifest
from tpu_training.errors import TrainingError
from tpu_training.loop.evaluation import create_replica_evaluation
from tpu_training.loop.state import TrainState, create_train_state, total_steps
from tpu_training.loop.step import Replica, create_replica_step, create_step_sums
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition


@dataclass(frozen=True)
class Step:
    """A traced step of one replica.

    Attributes:
        name: What it does.
        replicas: How many of them take it together: 1 where TensorFlow can't compile their sum.
        state: The variables that it reads and changes.
        function: The tf.function.
        concrete: Its trace.
        specs: Its arguments: the replica's number, then its share of a batch.
    """

    name: Literal["train", "evaluate"]
    replicas: int
    state: TrainState
    function: Any
    concrete: Any
    specs: tuple[tf.TensorSpec, ...]


def trace_training(
    definition: ModelDefinition, params: Params, manifest: Manifest, replicas: int
) -> Step:
    """Trace the training step of one of `replicas` replicas.

    Raises:
        InputError: The batch does not divide, or the model refuses the data or the parameters.
    """
    share = params.part_batch_size(replicas) * params.gradient_accumulation
    state = _create_state(definition, params, manifest)
    sums = create_step_sums(state)
    summed = replicas if can_reduce() else 1

    def step(number: tf.Tensor, *batch: tf.Tensor) -> None:
        replica = Replica(number, replicas, lambda values: sum_over(summed, number, values))
        create_replica_step(params, state, sums, lambda: replica)(*batch)

    return _trace("train", step, summed, state, _batch(manifest, params, share))


def trace_evaluation(
    definition: ModelDefinition, params: Params, manifest: Manifest, replicas: int
) -> Step:
    """Trace the evaluation of one replica's share of a batch.

    Raises:
        InputError: The batch does not divide, or the model refuses the data or the parameters.
    """
    share = params.replica_batch_size(replicas, "evaluation_batch_size")
    state = _create_state(definition, params, manifest)
    evaluate = create_replica_evaluation(params, state)

    def step(number: tf.Tensor, *batch: tf.Tensor) -> Sequence[tf.Tensor]:
        return evaluate(*batch)

    weights = tf.TensorSpec((share,), tf.float32, "weights")
    batch = (*_batch(manifest, params, share), weights)
    return _trace("evaluate", step, replicas, state, batch)


def _create_state(definition: ModelDefinition, params: Params, manifest: Manifest) -> TrainState:
    """Create the variables as on a TPU, in this process and without a strategy."""
    cluster = Cluster(tf.distribute.get_strategy(), "", None, has_tpu=True)
    return create_train_state(cluster, definition, params, manifest, total_steps(params, manifest))


def _batch(manifest: Manifest, params: Params, share: int) -> tuple[tf.TensorSpec, ...]:
    """Return features and labels of `share` examples."""
    spec = manifest.input_spec(params.image_size)
    return (
        tf.TensorSpec((share, *spec.shape), spec.dtype, "features"),
        tf.TensorSpec((share, *spec.target_shape), spec.target_dtype, "labels"),
    )


def _trace(
    name: Literal["train", "evaluate"],
    step: Callable[..., Any],
    replicas: int,
    state: TrainState,
    batch: Sequence[tf.TensorSpec],
) -> Step:
    specs = (tf.TensorSpec((), tf.int32, "replica"), *batch)
    function = tf.function(step, jit_compile=True, autograph=False)
    try:
        concrete = function.get_concrete_function(*specs)
    except TrainingError:
        raise
    except Exception as error:  # Whatever the user's code may raise.
        raise untraceable(name, error) from error
    return Step(name, replicas, state, function, concrete, specs)
