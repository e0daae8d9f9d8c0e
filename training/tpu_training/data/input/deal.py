"""Distribute batches to the replicas, on the hosts of the devices that consume them."""

from collections.abc import Callable

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.input.service import Build, in_services
from tpu_training.models.params import EXACT, Params

_PREFETCH_STEPS = 4

# Gives the next batch, as one value for each replica; called inside the compiled loop.
NextBatch = Callable[[], tuple[tf.Tensor, ...]]


def deal_out(cluster: Cluster, params: Params, build: Build, replica_batch: int) -> NextBatch:
    """Build the data set on the hosts that consume it and give each replica its rows.

    `build` returns a host's rows of each global batch.
    """
    if params.data_service:
        build = in_services(build, params.data_service)
    if not cluster.has_tpu:
        return _mirrored(cluster, params, build)

    def per_host(context: tf.distribute.InputContext) -> tf.data.Dataset:
        rows = build(context.num_input_pipelines, context.input_pipeline_id)
        each = context.num_replicas_in_sync // context.num_input_pipelines
        return finish(rows.rebatch(replica_batch, drop_remainder=True), params, each)

    iterator = iter(cluster.strategy.distribute_datasets_from_function(per_host))
    return lambda: next(iterator)


def _mirrored(cluster: Cluster, params: Params, build: Build) -> NextBatch:
    """Use one iterator for all replicas of a mirrored strategy; each takes its row of the batch.

    TensorFlow's own distributed data set adds an iterator per replica, whose tuning threads on a
    remote worker delay the end of the job by up to a minute.
    """

    def split(*parts: tf.Tensor) -> tuple[tf.Tensor, ...]:
        shape = (cluster.replicas, -1)
        return tuple(tf.reshape(part, (*shape, *part.shape[1:])) for part in parts)

    with cluster.on_loop_device():
        iterator = iter(finish(build(1, 0).map(split), params))

    def next_batch() -> tuple[tf.Tensor, ...]:
        return tuple(_rows(cluster, part) for part in next(iterator))

    return next_batch


def _rows(cluster: Cluster, part: tf.Tensor) -> tf.Tensor:
    """Give replica i the row i of `part`."""
    return cluster.strategy.experimental_distribute_values_from_function(
        lambda context: part[context.replica_id_in_sync_group]
    )


def finish(dataset: tf.data.Dataset, params: Params, replicas: int = 1) -> tf.data.Dataset:
    """Prefetch some steps, each of one element for each of this host's `replicas`.

    Without autotuning: nothing here needs it, and its thread delays the job's end.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.deterministic = params.order == EXACT
    return dataset.prefetch(_PREFETCH_STEPS * replicas).with_options(options)
