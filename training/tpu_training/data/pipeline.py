"""The tf.data pipelines, on the hosts of the devices that consume them."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import data_set, function, preprocessing, shards
from tpu_training.data.manifest import TEST, TRAIN
from tpu_training.errors import InputError
from tpu_training.models.params import CACHE_AUTO, CACHE_MEMORY, FAST, STREAM, Params

# Gives the next batch, as one value for each replica; called inside the compiled loop. Features
# with several inputs are a dictionary in it.
NextBatch = Callable[[], tuple[Any, ...]]
# number of hosts, number of this host -> its batches
Build = Callable[[int, int], tf.data.Dataset]
# Up to this size the training examples are kept in memory in their stored form.
_MOST_CACHED_BYTES = 512 << 20


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def training_batches(
    data: data_set.DataSet, cluster: Cluster, params: Params, first_step: int = 0
) -> NextBatch:
    """Return an endless source of (features, labels), reshuffled each epoch.

    The first batch is that of `first_step`, counted from 0. The examples of a step depend only on
    the dataset, the seed and the global batch size, so a resumed job reads the same examples, even
    on another number of replicas and hosts.
    """

    def build(hosts: int, host: int) -> tf.data.Dataset:
        return training_rows(data, params, first_step, hosts, host)

    return deal_out(cluster, params, build, params.replica_batch_size(cluster.replicas))


def training_rows(
    data: data_set.DataSet, params: Params, first_step: int, hosts: int, host: int
) -> tf.data.Dataset:
    """Return the rows of `host` of each global batch, as (features, labels)."""
    manifest = data.manifest
    if again := params.overfit_batches:
        every = dataclasses.replace(params, overfit_batches=0)
        first = training_rows(data, every, 0, hosts, host).take(again)
        return first.cache().repeat().skip(first_step % again)
    work = preprocessing.training_preprocessing(manifest, params)
    plan = _plan(params.seed, params.global_batch_size, first_step, hosts, host)
    # Three sources of batches and one preparation: a user's function, a dataset that is kept in
    # memory in its stored form, and files, which may be larger than any memory.
    if data.function:
        epoch = partial(data.function.epoch, TRAIN, params.seed)
        batches = shards.batches_of_epochs(epoch, manifest.split(TRAIN).examples, plan)
        return prepare(batches, work, plan)
    stored = dataclasses.replace(data.shards(TRAIN), stream=params.order == STREAM)
    if not stored.stream and (
        params.cache == CACHE_MEMORY
        or (params.cache == CACHE_AUTO and stored.bytes <= _MOST_CACHED_BYTES)
    ):
        batches = shards.batches_from_memory(stored.read_all(), stored.examples, manifest, plan)
    else:
        batches = shards.batches_from_files(stored, plan).map(
            lambda step, serialised: (step, *preprocessing.parse_examples(serialised, manifest)),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    return prepare(batches, work, plan)


@tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
def evaluation_batches(
    data: data_set.DataSet, cluster: Cluster, params: Params, split: str = TEST
) -> tuple[NextBatch, int]:
    """Return a source of (features, labels, weights) and the number of batches per evaluation.

    The source repeats, so that later evaluations reuse the compiled one. Every example of `split`
    occurs exactly once with weight 1. Examples of weight 0 fill the last batches, so that all have
    one static shape and no replica runs out before the others. Each host reads its own share.
    """
    replica_batch = params.replica_batch_size(cluster.replicas, "evaluation_batch_size")
    steps = evaluation_steps(data, params, split)

    def build(hosts: int, host: int) -> tf.data.Dataset:
        return repeated_rows(data, params, hosts, host, split)

    return deal_out(cluster, params, build, replica_batch), steps


def repeated_rows(
    data: data_set.DataSet, params: Params, hosts: int, host: int, split: str
) -> tf.data.Dataset:
    """Return `evaluation_rows` again and again; it fails where the files have other numbers."""
    rows = evaluation_rows(data, params, hosts, host, split)
    steps, every = evaluation_steps(data, params, split), _all_batches(data, params, split)
    checked = rows.apply(tf.data.experimental.assert_cardinality(every))
    return (checked if steps == every else rows.take(steps)).repeat()


def evaluation_rows(
    data: data_set.DataSet, params: Params, hosts: int, host: int, split: str = TEST
) -> tf.data.Dataset:
    """Return the share of `host` of each batch of `split`, as (features, labels, weights)."""
    manifest = data.manifest
    plan = _plan(params.seed, params.evaluation_batch_size, 0, hosts, host)
    steps = _all_batches(data, params, split)
    if data.function:
        batches = shards.batches_of_share(
            function.Part(data.function, split, params.seed), plan, steps
        )
    else:
        batches = shards.batches_of_share(data.shards(split), plan, steps).map(
            lambda step, serialised, weights: (
                step,
                *preprocessing.parse_examples(serialised, manifest),
                weights,
            ),
            num_parallel_calls=tf.data.AUTOTUNE,
        )
    return prepare(batches, preprocessing.evaluation_preprocessing(manifest, params), plan)


def evaluation_steps(data: data_set.DataSet, params: Params, split: str) -> int:
    """Return how many batches an evaluation of `split` takes."""
    every = _all_batches(data, params, split)
    return min(every, params.limit_batches or every)


def _all_batches(data: data_set.DataSet, params: Params, split: str) -> int:
    return -(-data.manifest.split(split).examples // params.evaluation_batch_size)


def _plan(seed: int, batch: int, first_step: int, hosts: int, host: int) -> shards.Plan:
    if hosts > batch:
        raise InputError(
            f"a batch of {batch} examples has none for some of {hosts} hosts; raise the batch size"
        )
    return shards.Plan(seed, batch, first_step, host * batch // hosts, (host + 1) * batch // hosts)


_AUTOTUNE = tf.data.AUTOTUNE
_LARGEST_SEED = tf.int32.max
# Hosts of TPUs have about a hundred cores. With two batches no core idles at the end of one; more
# would only take memory.
_EXAMPLES_AT_ONCE, _BATCHES_AT_ONCE = 64, 2


def prepare(
    batches: tf.data.Dataset, work: preprocessing.Preprocessing, plan: shards.Plan
) -> tf.data.Dataset:
    """Return the elements (step, features, *others) of `batches` as (features, *others).

    The random state of each example comes from the seed, the step and the row in the global batch.
    """
    batches = batches.map(_with_seeds(plan))
    if work.decode:
        batches = _each_example(batches, work.decode, work.stored)
    if work.masks:
        batches = batches.map(_join_masks)
    if work.example:
        batches = _each_example(batches, work.example, work.shape)
    batch = work.batch

    def finish(seeds: tf.Tensor, features: tf.Tensor, *others: Any) -> tuple[Any, ...]:
        features = batch(features, seeds) if batch else features
        if not work.masks:
            return features, *others
        image, mask = preprocessing.split_masks(features)
        weight, *rest = others
        return image, (mask, *weight) if weight else mask, *rest

    return batches.map(finish, num_parallel_calls=_AUTOTUNE if batch else None)


def _join_masks(seeds: tf.Tensor, features: tf.Tensor, targets: Any, *others: Any) -> Any:
    """Return the masks behind their images; in their place the weights, if there are any."""
    mask, *weight = tf.nest.flatten(targets)
    return seeds, preprocessing.join_masks(features, mask), tuple(weight), *others


def _with_seeds(plan: shards.Plan) -> Callable[..., tuple[tf.Tensor, ...]]:
    def draw(step: tf.Tensor, *content: tf.Tensor) -> tuple[tf.Tensor, ...]:
        seeds = tf.random.stateless_uniform(
            (plan.batch, 2),
            shards.key(plan.seed, shards.AUGMENTATION, step),
            maxval=_LARGEST_SEED,
            dtype=tf.int32,
        )
        return seeds[plan.begin : plan.end], *content

    return draw


def _each_example(
    batches: tf.data.Dataset,
    example: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
    shape: tuple[int, ...],
) -> tf.data.Dataset:
    """Loop over each batch: one tf.data call per example would cost a fifth of its decoding."""

    def apply(seeds: tf.Tensor, features: tf.Tensor, *others: tf.Tensor) -> tuple[tf.Tensor, ...]:
        made = tf.map_fn(
            lambda pair: example(*pair),
            (features, seeds),
            fn_output_signature=tf.TensorSpec(shape, tf.uint8),
            parallel_iterations=_EXAMPLES_AT_ONCE,
        )
        return seeds, made, *others

    return batches.map(apply, num_parallel_calls=_BATCHES_AT_ONCE)


_PREFETCH_STEPS = 4


def deal_out(cluster: Cluster, params: Params, build: Build, replica_batch: int) -> NextBatch:
    """Build the dataset on the hosts that consume it and give each replica its rows.

    `build` returns a host's rows of each global batch.
    """
    # On TPUs each host builds its part of the input next to its cores.
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

    TensorFlow's own distributed dataset adds an iterator per replica, whose tuning threads on a
    remote worker delay the end of the job by up to a minute.
    """

    def split(*parts: Any) -> tuple[Any, ...]:
        shape = (cluster.replicas, -1)
        return tuple(tf.nest.map_structure(lambda x: tf.reshape(x, (*shape, *x.shape[1:])), parts))

    with cluster.on_loop_device():
        iterator = iter(finish(build(1, 0).map(split), params))

    def next_batch() -> tuple[Any, ...]:
        return tuple(tf.nest.map_structure(lambda part: _rows(cluster, part), next(iterator)))

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
    options.deterministic = params.order != FAST
    return dataset.prefetch(_PREFETCH_STEPS * replicas).with_options(options)


class TimedInput:
    """A source of batches that measures how long the loop waits for it.

    Reads the clock of the machine that runs the loop, when a step begins and when the first host
    has its share of the batch; a batch that is ready takes almost no time. The other hosts are not
    waited for: that would tie all of them together in each step. They read as much as the first.
    """

    def __init__(self, next_batch: NextBatch, cluster: Cluster) -> None:
        """Measure `next_batch`."""
        self._next_batch = next_batch
        self._strategy = cluster.strategy
        with cluster.on_loop_device():
            self._seconds = tf.Variable(0.0, dtype=tf.float64, trainable=False)

    def __call__(self) -> tuple[Any, ...]:
        """Return the next batch; called inside the compiled loop."""
        # A step begins when the one before has ended, so the clock need not hold back the input.
        begun = tf.timestamp()
        batch = self._next_batch()
        with tf.control_dependencies(self._of_first_host(batch)):
            self._seconds.assign_add(tf.timestamp() - begun, read_value=False)
        return batch

    def _of_first_host(self, batch: Sequence[Any]) -> list[tf.Tensor]:
        parts = tf.nest.flatten(batch)
        values = [v for part in parts for v in self._strategy.experimental_local_results(part)]
        return [value for value in values if _host(value) == _host(values[0])]

    def reset(self) -> None:
        """Start again from 0; called in the compiled loop before its first step."""
        self._seconds.assign(0.0, read_value=False)

    def seconds(self) -> tf.Tensor:
        """Return the seconds waited since the last reset, float32; called in the compiled loop."""
        return tf.cast(self._seconds, tf.float32)


def _host(value: tf.Tensor) -> int | None:
    """Return the number of the host on whose device `value` is."""
    task: int | None = tf.DeviceSpec.from_string(value.device).task
    return task
