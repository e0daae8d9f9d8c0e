"""Build the tf.data pipelines on the hosts of the devices that consume them."""

from functools import partial

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.function.live import Part
from tpu_training.data.input.deal import NextBatch, deal_out
from tpu_training.data.input.epochs import batches_of_epochs
from tpu_training.data.input.memory import batches_from_memory
from tpu_training.data.input.order import Plan
from tpu_training.data.input.prepare import prepare
from tpu_training.data.input.share import batches_of_share
from tpu_training.data.input.stream import batches_from_files
from tpu_training.data.manifest import TEST, TRAIN
from tpu_training.data.preprocessing.evaluate import evaluation_preprocessing
from tpu_training.data.preprocessing.parse import parse_examples
from tpu_training.data.preprocessing.train import training_preprocessing
from tpu_training.errors import InputError
from tpu_training.models.params import CACHE_AUTO, CACHE_MEMORY, Params

# Up to this size the training examples are kept in memory in their stored form.
_MOST_CACHED_BYTES = 512 << 20


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def training_batches(
    data: DataSet, cluster: Cluster, params: Params, first_step: int = 0
) -> NextBatch:
    """Return an endless source of (features, labels), reshuffled each epoch.

    The first batch is that of `first_step`, counted from 0. The examples of a step depend only on
    the data set, the seed and the global batch size, so a resumed job reads the same examples, even
    on another number of replicas and hosts.
    """

    def build(hosts: int, host: int) -> tf.data.Dataset:
        return training_rows(data, params, first_step, hosts, host)

    return deal_out(cluster, params, build, params.replica_batch_size(cluster.replicas))


def training_rows(
    data: DataSet, params: Params, first_step: int, hosts: int, host: int
) -> tf.data.Dataset:
    """Return the rows of `host` of each global batch, as (features, labels)."""
    manifest = data.manifest
    preprocessing = training_preprocessing(manifest, params)
    plan = _plan(params.seed, params.global_batch_size, first_step, hosts, host)
    if data.function:
        epoch = partial(data.function.epoch, TRAIN, params.seed)
        batches = batches_of_epochs(epoch, manifest.split(TRAIN).examples, plan)
        return prepare(batches, preprocessing, plan)
    shards = data.shards(TRAIN)
    if params.cache == CACHE_MEMORY or (
        params.cache == CACHE_AUTO and shards.bytes <= _MOST_CACHED_BYTES
    ):
        batches = batches_from_memory(shards.read_all(), shards.examples, manifest, plan)
    else:
        batches = batches_from_files(shards, plan).map(
            lambda step, serialised: (step, *parse_examples(serialised, manifest)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    return prepare(batches, preprocessing, plan)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def evaluation_batches(
    data: DataSet, cluster: Cluster, params: Params, split: str = TEST
) -> tuple[NextBatch, int]:
    """Return a source of (features, labels, weights) and the number of batches per evaluation.

    The source repeats, so that later evaluations reuse the compiled one. Every example of `split`
    occurs exactly once with weight 1. Examples of weight 0 fill the last batches, so that all have
    one static shape and no replica runs out before the others. Each host reads its own share.
    """
    replica_batch = params.replica_batch_size(cluster.replicas, "evaluation_batch_size")
    steps = _evaluation_steps(data, params, split)

    def build(hosts: int, host: int) -> tf.data.Dataset:
        rows = evaluation_rows(data, params, hosts, host, split)
        return rows.apply(tf.data.experimental.assert_cardinality(steps)).repeat()

    return deal_out(cluster, params, build, replica_batch), steps


def evaluation_rows(
    data: DataSet, params: Params, hosts: int, host: int, split: str = TEST
) -> tf.data.Dataset:
    """Return the share of `host` of each batch of `split`, as (features, labels, weights)."""
    manifest = data.manifest
    plan = _plan(params.seed, params.evaluation_batch_size, 0, hosts, host)
    steps = _evaluation_steps(data, params, split)
    if data.function:
        batches = batches_of_share(Part(data.function, split, params.seed), plan, steps)
    else:
        batches = batches_of_share(data.shards(split), plan, steps).map(
            lambda step, serialised, weights: (
                step,
                *parse_examples(serialised, manifest),
                weights,
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    return prepare(batches, evaluation_preprocessing(manifest, params), plan)


def _evaluation_steps(data: DataSet, params: Params, split: str) -> int:
    return -(-data.manifest.split(split).examples // params.evaluation_batch_size)


def _plan(seed: int, batch: int, first_step: int, hosts: int, host: int) -> Plan:
    if hosts > batch:
        raise InputError(
            f"a batch of {batch} examples has none for some of {hosts} sources of input; name "
            "fewer --data_service, or enlarge the batch"
        )
    return Plan(seed, batch, first_step, host * batch // hosts, (host + 1) * batch // hosts)
