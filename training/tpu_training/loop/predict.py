"""Say what a trained model makes of examples: compiled, in batches, over all replicas."""

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.errors import InputError
from tpu_training.loop.state import TrainState
from tpu_training.models.params import Params
from tpu_training.models.spec import DataSpec

# features (examples, …) -> arrays by name
Predict = Callable[[Any], dict[str, Any]]


def create_prediction(
    cluster: Cluster, params: Params, state: TrainState, spec: DataSpec
) -> Predict:
    """Return a function that gives the task's predictions for features of the data's `spec`.

    They pass through what an evaluation's pass through, in batches of at most its size.

    Raises:
        InputError: The features have another shape or type than the data's.
    """
    most = params.replica_batch_size(cluster.replicas, "evaluation_batch_size")

    def replica(features: tf.Tensor) -> dict[str, tf.Tensor]:
        targets = tf.zeros((features.shape[0], *spec.target_shape), spec.target_dtype)
        inputs, _ = state.prepare(features, targets, False)
        return dict(state.task.predictions(state.forward(inputs, training=False)))

    compiled = tf.function(lambda rows: cluster.strategy.run(replica, (rows,)), autograph=False)

    def predict(features: Any) -> dict[str, Any]:
        given = np.asarray(features)
        if given.shape[1:] != spec.shape or given.dtype.kind not in "iu":
            raise InputError(
                f"features are {given.dtype} of the shape {given.shape}, expected {spec.dtype} of "
                f"the shape (examples, {', '.join(map(str, spec.shape))}) as in the data set"
            )
        # Of few sizes, as each is compiled.
        wanted = -(-len(given) // cluster.replicas)
        share = min(most, 1 << max(0, wanted - 1).bit_length())
        size = share * cluster.replicas
        padding = [(0, -len(given) % size or size * (not len(given)))]
        rows = np.pad(given.astype(spec.dtype), padding + [(0, 0)] * len(spec.shape))
        found = [_run(cluster, compiled, part) for part in np.split(rows, len(rows) // size)]
        return {name: np.concatenate([p[name] for p in found])[: len(given)] for name in found[0]}

    return predict


def _run(cluster: Cluster, compiled: Callable[..., Any], rows: Any) -> dict[str, Any]:
    """Return what `compiled` gives for `rows`, dealt out to the replicas."""
    strategy = cluster.strategy
    parts = np.split(rows, cluster.replicas)
    with cluster.on_loop_device():
        dealt = strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(parts[context.replica_id_in_sync_group])
        )
        given = compiled(dealt)
    return {
        name: np.concatenate([part.numpy() for part in strategy.experimental_local_results(value)])
        for name, value in given.items()
    }
