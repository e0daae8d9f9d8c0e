"""Data sets as tf.data pipelines, built and read on the hosts of the devices that consume them."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from training import files
from training.cluster import Cluster
from training.data.manifest import FILE_NAME, Manifest, parse_manifest
from training.errors import DataError
from training.params import Params
from training.preprocessing import parse_examples

_PARSE_BATCH = 512
_READ_BUFFER_BYTES = 8 << 20
_PARALLEL_READS = 4
_PREFETCH_BATCHES = 4

# Gives the next batch, as one value for each replica; called inside the compiled loop.
NextBatch = Callable[[], tuple[tf.Tensor, ...]]
_Build = Callable[[tf.distribute.InputContext], tf.data.Dataset]


@dataclass(frozen=True)
class DataSet:
    """A data set in `directory` (a path or gs:// URL) that was found complete."""

    directory: str
    manifest: Manifest

    def paths(self, split: str) -> list[str]:
        """The paths of the files of `split`."""
        return [f"{self.directory}/{file.name}" for file in self.manifest.split(split).files]


def open_data(directory: str) -> DataSet:
    """Read the manifest in `directory` and check that every file is there with its size.

    Raises DataError that lists all files that are missing or of another size.
    """
    directory = directory.rstrip("/")
    path = f"{directory}/{FILE_NAME}"
    text = files.read_text(path)
    if text is None:
        raise DataError(
            f"--data={directory}: there is no {FILE_NAME} in it; write the data set with "
            "`python -m training data convert` and copy it there"
        )
    data = DataSet(directory, parse_manifest(text, path))
    problems = []
    for split in data.manifest.splits.values():
        for file in split.files:
            size = files.size(f"{directory}/{file.name}")
            if size is None:
                problems.append(f"{file.name} is missing")
            elif size != file.bytes:
                problems.append(f"{file.name} has {size} bytes, expected {file.bytes}")
    if problems:
        raise DataError(f"--data={directory}: {'; '.join(problems)}; copy the files there again")
    return data


def corrupt_files(data: DataSet) -> list[str]:
    """Return the names of the files whose SHA-256 is not the manifest's; reads all of them."""
    return [
        file.name
        for split in data.manifest.splits.values()
        for file in split.files
        if files.sha256(f"{data.directory}/{file.name}") != file.sha256
    ]


def training_batches(
    data: DataSet, cluster: Cluster, params: Params, first_step: int = 0
) -> NextBatch:
    """Return an endless source of (images, labels), shuffled anew each epoch.

    The first batch is that of `first_step`, counted from 0.
    """
    examples = data.manifest.split("train").examples
    replica_batch = params.replica_batch_size(cluster.replicas)
    # Another order than before the restart: the examples are seen anew, not the same first ones.
    seed = params.seed + first_step

    def build(context: tf.distribute.InputContext) -> tf.data.Dataset:
        hosts = context.num_input_pipelines
        dataset = _examples(data, "train").shard(hosts, context.input_pipeline_id).cache()
        dataset = dataset.shuffle(-(-examples // hosts), seed=seed).repeat()
        return dataset.batch(replica_batch, drop_remainder=True)

    return _distribute(cluster, build)


def evaluation_batches(
    data: DataSet, cluster: Cluster, replica_batch: int
) -> tuple[NextBatch, int]:
    """Return a source of (images, labels, weights) and the number of batches in it.

    Every test image comes exactly once with weight 1; images of weight 0 fill the last batches, so
    that all batches have one static shape and no replica runs dry before the others.
    """
    examples = data.manifest.split("test").examples
    steps = -(-examples // (replica_batch * cluster.replicas))
    filling = steps * replica_batch * cluster.replicas - examples
    shape = data.manifest.image_shape

    def build(context: tf.distribute.InputContext) -> tf.data.Dataset:
        real = _examples(data, "test").map(lambda image, label: (image, label, 1.0))
        empty = (tf.zeros(shape, tf.uint8), tf.constant(0, tf.int32), tf.constant(0.0))
        dataset = real.concatenate(tf.data.Dataset.from_tensors(empty).repeat(filling))
        dataset = dataset.shard(context.num_input_pipelines, context.input_pipeline_id)
        return dataset.batch(replica_batch, drop_remainder=True)

    return _distribute(cluster, build), steps


def _distribute(cluster: Cluster, build: _Build) -> NextBatch:
    """Build the data set where its batches are consumed and deal them out to the replicas."""
    if cluster.has_tpu:
        per_host = cluster.strategy.distribute_datasets_from_function(
            lambda context: _tune(build(context))
        )
        iterator = iter(per_host)
        return lambda: next(iterator)
    return _deal_out(cluster, build)


def _deal_out(cluster: Cluster, build: _Build) -> NextBatch:
    """One iterator for all replicas of a mirrored strategy; each takes its row of the batch.

    TensorFlow's own distributed data set has one more iterator per replica here, whose tuning
    threads hold up the end of the job by up to a minute when they are on a remote worker.
    """
    with cluster.on_loop_device():
        dataset = build(tf.distribute.InputContext()).batch(cluster.replicas, drop_remainder=True)
        iterator = iter(_tune(dataset))

    def next_batch() -> tuple[tf.Tensor, ...]:
        return tuple(_rows(cluster, part) for part in next(iterator))

    return next_batch


def _rows(cluster: Cluster, part: tf.Tensor) -> tf.Tensor:
    """Row i of `part` for replica i."""
    return cluster.strategy.experimental_distribute_values_from_function(
        lambda context: part[context.replica_id_in_sync_group]
    )


def _tune(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Have some batches ready. There is nothing to autotune, and its thread delays the end."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.prefetch(_PREFETCH_BATCHES).with_options(options)


def _examples(data: DataSet, split: str) -> tf.data.Dataset:
    """The examples of `split` one by one, always in the same order."""
    records = tf.data.TFRecordDataset(
        data.paths(split), buffer_size=_READ_BUFFER_BYTES, num_parallel_reads=_PARALLEL_READS
    )
    shape = data.manifest.image_shape
    return records.batch(_PARSE_BATCH).map(lambda batch: parse_examples(batch, shape)).unbatch()
