"""What a training shows of itself: TensorBoard's event files, and the model in them.

The event files are written and read without TensorBoard, which TensorFlow 2.21 does not include.
"""

import dataclasses
import itertools
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data import data_set, pipeline
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.loop.state import TrainState
from tpu_training.models.model import variable_paths
from tpu_training.models.params import Params
from tpu_training.models.spec import CLASS
from tpu_training.models.step_context import split_weights

# A flush to a bucket sends the whole file again.
_FLUSH_SECONDS = 30.0
# https://github.com/tensorflow/tensorflow/blob/v2.19.0/tensorflow/core/util/events_writer.h
_VERSION = "brain.Event:2"

_numbers = itertools.count()
# step -> value
Series = dict[int, float]


class Summaries:
    """An event file that this process writes.

    Not by TensorFlow's own operations: in a connected job they would run on the worker, each for a
    round trip, and its writer flushes after each of them. Any thread may write.
    """

    def __init__(self, directory: str, clock: Callable[[], float] = time.monotonic) -> None:
        tf.io.gfile.makedirs(directory)
        begun, host = int(time.time()), socket.gethostname()
        name = f"events.out.tfevents.{begun}.{host}.{os.getpid()}.{next(_numbers):04d}.v2"
        self._file = tf.io.TFRecordWriter(f"{directory}/{name}")
        self._clock, self._flushed = clock, -_FLUSH_SECONDS
        self._lock = threading.Lock()
        self._add(tf.compat.v1.Event(file_version=_VERSION))

    def scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Write each of `scalars` by its name, such as `train/loss`."""
        values = {name: np.float32(value) for name, value in scalars.items()}
        self._write(step, "scalars", values)

    def picture(self, step: int, name: str, png: bytes) -> None:
        """Write a PNG picture under `name`."""
        # A PNG file begins with 16 bytes that are always the same, then its width and height.
        size = struct.unpack(">II", png[16:24])
        # What TensorBoard's plug-in reads: width and height as text, then the pictures.
        content = [str(pixels).encode() for pixels in size] + [png]
        self._write(step, "images", {name: np.array(content, np.object_)})

    def histograms(self, step: int, histograms: Mapping[str, npt.NDArray[np.float64]]) -> None:
        """Write left edge, right edge and count of each bucket, (buckets, 3), by name."""
        self._write(step, "histograms", histograms)

    def graph(self, step: int, graph: tf.Graph) -> None:
        """Write a model's graph."""
        definition = graph.as_graph_def(add_shapes=True).SerializeToString()
        self._add(tf.compat.v1.Event(step=step, graph_def=definition))

    def close(self) -> None:
        """Write what is left."""
        self._file.close()

    def _write(self, step: int, plugin: str, values: Mapping[str, npt.ArrayLike]) -> None:
        data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
        metadata = tf.compat.v1.SummaryMetadata(plugin_data=data)
        summary = tf.compat.v1.Summary()
        for name, value in values.items():
            summary.value.add(tag=name, metadata=metadata, tensor=tf.make_tensor_proto(value))
        self._add(tf.compat.v1.Event(step=step, summary=summary))

    def _add(self, event: tf.compat.v1.Event) -> None:
        event.wall_time = time.time()
        with self._lock:
            self._file.write(event.SerializeToString())
            if self._clock() - self._flushed >= _FLUSH_SECONDS:
                self._file.flush()
                self._flushed = self._clock()


def read_series(logdir: str) -> dict[str, Series]:
    """Return every scalar by its tag, in the order of steps.

    Where a killed training was started again, what the later start wrote for a step counts.
    """
    series: dict[str, Series] = {}
    for event in _events(logdir):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name in ("scalars", "") and value.tensor.dtype:
                array = tf.make_ndarray(value.tensor)
                if array.size == 1:
                    series.setdefault(value.tag, {})[event.step] = float(array)
    return {tag: dict(sorted(values.items())) for tag, values in sorted(series.items())}


def _events(logdir: str) -> Iterator[tf.compat.v1.Event]:
    """All events, file by file in the order of their start; what is half written ends a file."""
    names = tf.io.gfile.listdir(logdir) if tf.io.gfile.isdir(logdir) else []
    for name in sorted(name for name in names if name.startswith("events.out.")):
        records = tf.data.TFRecordDataset(f"{logdir}/{name}")
        try:
            for record in records.as_numpy_iterator():
                yield tf.compat.v1.Event.FromString(record)
        except tf.errors.DataLossError:
            continue


# --- Summarise the model for TensorBoard: graph, examples, weights and gradients.

_EXAMPLES = 16
_BUCKETS = 30

logger = logging.getLogger(__name__)


class ModelSummaries(Callback):
    """Writes what the training and its checkpoints have computed for themselves.

    The devices get no program of its own to compile: the gradients' norms are sums of the loop, and
    the weights are those of a checkpoint's copy.
    """

    def __init__(
        self,
        cluster: Cluster,
        params: Params,
        data: data_set.DataSet,
        state: TrainState,
        summaries: Summaries,
    ) -> None:
        """Write to `summaries`, every `snapshot_interval` steps; 0 writes nothing."""
        self._cluster, self._params, self._data = cluster, params, data
        self._state, self._summaries = state, summaries
        self._spec = data.manifest.input_spec(params.image_size)
        self._interval, self._last = params.snapshot_interval, data.manifest.steps(params)
        self._taken = self._copied = 0
        self._drawn = set[str]()

    def start(self, step: int) -> None:
        """Write the model's graph, as it answers; it is traced, but not compiled."""
        state, spec = self._state, self._spec
        # With a step alone, as a GAN's, the model may take something else than an example.
        if not (self._interval and state.evaluates):
            return

        def forward(features: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
            inputs, _ = state.prepare(features, targets, False)
            return state.forward(inputs, training=False)

        features = spec.features(lambda shape, dtype: tf.TensorSpec((_EXAMPLES, *shape), dtype))
        targets = spec.target(lambda shape, dtype: tf.TensorSpec((_EXAMPLES, *shape), dtype))
        with self._cluster.on_loop_device():
            traced = tf.function(forward, autograph=False).get_concrete_function(features, targets)
        self._summaries.graph(step, traced.graph)

    def evaluated(self, step: int, split: str) -> None:
        """Write the first pictures of `split`, as the model gets them, with their classes; once."""
        pictures = self._spec.kind == "image" and self._spec.shape[-1] in (1, 3, 4)
        if not (self._interval and pictures) or self._spec.several or split in self._drawn:
            return
        self._drawn.add(split)
        cluster = self._cluster.here
        share = self._params.replica_batch_size(cluster.replicas, "evaluation_batch_size")
        size = min(_EXAMPLES, share) * cluster.replicas
        few = dataclasses.replace(self._params, evaluation_batch_size=size)
        with cluster.on_loop_device():
            batch = pipeline.evaluation_batches(self._data, cluster, few, split)[0]()
        local = cluster.strategy.experimental_local_results
        batch = (batch[0], split_weights(batch[1])[0], batch[2])
        images, targets, weights = (local(part)[0].numpy() for part in batch)
        names = self._data.manifest.class_names
        for number in np.flatnonzero(weights):
            tag, target = f"{split}_examples/{number:02}", targets[number]
            if self._spec.targets == CLASS:
                tag += f" {names[target] if names else target}"
            with tf.device(cluster.this_process):
                png = tf.io.encode_png(images[number].astype(np.uint8)).numpy()
            self._summaries.picture(step, tag, png)

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Write the norms of the gradient of each variable, if they are due."""
        if self._is_due(step, self._taken):
            self._taken = step // self._interval
            norms = {
                f"variables/gradient_norm/{path}": n for path, n in report.gradient_norms.items()
            }
            self._summaries.scalars(step, norms)

    def copied(self, step: int, model: tf.Module) -> None:
        """Write how the weights are spread in `model`, a checkpoint's copy; in the background."""
        if self._is_due(step, self._copied):
            self._copied = step // self._interval
            trained = set(self._state.paths)
            pairs = [pair for pair in variable_paths(model) if pair[0] in trained]
            weights = {f"weights/{path}": _histogram(v.numpy()) for path, v in pairs}
            self._summaries.histograms(step, weights)

    def _is_due(self, step: int, taken: int) -> bool:
        return bool(self._interval) and (step // self._interval != taken or step == self._last)


def _histogram(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return TensorBoard's format: left edge, right edge and count of each bucket."""
    # The narrower types have no room for edges between weights that are almost equal.
    values = values.astype(np.float64)
    # Widened if all weights are equal, such as a bias at the start.
    low, high = float(values.min()), float(values.max())
    spread = 0.0 if low < high else 1e-6
    counts, edges = np.histogram(values, _BUCKETS, (low - spread, high + spread))
    found: npt.NDArray[np.float64] = np.stack([edges[:-1], edges[1:], counts], axis=1)
    return found
