"""Summarise the model for TensorBoard: predictions on images, weights, gradients, graph."""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.data.data_set import DataSet
from tpu_training.data.input.pipeline import evaluation_batches
from tpu_training.errors import InputError
from tpu_training.errors.extras import require_plots
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.loop.state import TrainState
from tpu_training.models.params import Params
from tpu_training.monitoring.grid import draw_grid
from tpu_training.monitoring.names import variable_names
from tpu_training.monitoring.summaries import write_histogram, write_picture, write_scalars

_EXAMPLES = 32
_BUCKETS = 30

logger = logging.getLogger(__name__)


class ModelSummaries(Callback):
    """Writes a summary every `snapshot_interval` steps and at the last one.

    Predictions and gradients are those of a few fixed test examples, without dropout, so that
    summaries can be compared. They do not affect the training.
    """

    def __init__(
        self,
        cluster: Cluster,
        params: Params,
        data: DataSet,
        state: TrainState,
        writer: tf.summary.SummaryWriter,
    ) -> None:
        """Write to `writer`; read and compile nothing before the first summary is due."""
        self._cluster = cluster
        self._params = params
        self._data = data
        self._state = state
        self._writer = writer
        self._taken = 0
        self._sample: _Sample | None = None

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Write a summary if one is due."""
        interval = self._params.snapshot_interval
        if not interval or (step // interval == self._taken and step != report.last_step):
            return
        self._taken = step // interval
        if self._sample is None:
            self._sample = _Sample(self._cluster, self._params, self._data, self._state)
            with tf.device(self._cluster.this_process), self._writer.as_default(step):
                tf.summary.graph(self._sample.graph)
        self._write(self._sample, step)

    def _write(self, sample: "_Sample", step: int) -> None:
        classes, norms, histograms = sample.look()
        names = variable_names(self._state.model)
        scalars = dict(zip((f"gradient_norm/{name}" for name in names), norms, strict=True))
        scalars["gradient_norm/all"] = float(np.linalg.norm(norms))
        with tf.device(self._cluster.this_process):
            write_scalars(self._writer, step, scalars)
            for name, histogram in zip(names, histograms, strict=True):
                write_histogram(self._writer, step, f"weights/{name}", histogram)
            if self._data.manifest.spec.kind == "image":
                self._write_picture(sample, step, classes)
        right = int((classes == sample.labels).sum())
        logger.info("snapshot: step %d, %d of %d samples right", step, right, len(classes))

    def _write_picture(self, sample: "_Sample", step: int, classes: npt.NDArray[np.int32]) -> None:
        try:
            require_plots("a picture of the test examples")
        except InputError as error:
            logger.warning("snapshot: %s", error)
            return
        png = draw_grid(sample.features, sample.labels, classes)
        write_picture(self._writer, step, "test/predictions", png)


class _Sample:
    """A few test examples on the cluster's devices, and a compiled function that examines them."""

    def __init__(self, cluster: Cluster, params: Params, data: DataSet, state: TrainState) -> None:
        self._cluster = cluster
        each = -(-_EXAMPLES // cluster.replicas)
        few = dataclasses.replace(params, evaluation_batch_size=each * cluster.replicas)
        with cluster.on_loop_device():
            self._batch = evaluation_batches(data, cluster, few)[0]()
            self._look = tf.function(_create_look(cluster, params, state), autograph=False)
            self.graph = self._look.get_concrete_function(*self._batch).graph
        features, labels, weights = (self._values(part) for part in self._batch)
        self._real = np.asarray(weights, np.bool_)
        self.features, self.labels = features[self._real], labels[self._real]

    def look(
        self,
    ) -> tuple[npt.NDArray[np.int32], list[float], list[npt.NDArray[np.float64]]]:
        """Return the predicted classes, and each variable's gradient norm and weight histogram."""
        with self._cluster.on_loop_device():
            classes, norms, ranges, counts = self._look(*self._batch)
        histograms = [
            _histogram(bounds, count)
            for bounds, count in zip(ranges.numpy(), counts.numpy(), strict=True)
        ]
        return self._values(classes)[self._real], norms.numpy().tolist(), histograms

    def _values(self, value: tf.Tensor) -> npt.NDArray[Any]:
        parts = self._cluster.strategy.experimental_local_results(value)
        return np.concatenate([part.numpy() for part in parts])


def _create_look(
    cluster: Cluster, params: Params, state: TrainState
) -> Callable[..., tuple[tf.Tensor, ...]]:
    strategy, variables = cluster.strategy, state.model.trainable_variables

    def replica_look(
        features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            logits = state.forward(features, training=False)
            losses = state.losses(logits, labels, params) * weights
            loss = tf.reduce_sum(losses) / _EXAMPLES
        gradients = tape.gradient(
            loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        return tf.argmax(logits, axis=1, output_type=tf.int32), dense

    def look(*batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        classes, gradients = strategy.run(replica_look, batch)
        norms = []
        for gradient in gradients:
            norms.append(tf.norm(strategy.reduce(tf.distribute.ReduceOp.SUM, gradient, axis=None)))
        return classes, tf.stack(norms), *_distributions(variables)

    return look


def _distributions(variables: Sequence[tf.Variable]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ranges (variables, 2) and counts (variables, buckets), computed on the device."""
    ranges, counts = [], []
    for variable in variables:
        values = tf.reshape(tf.cast(tf.convert_to_tensor(variable), tf.float32), [-1])
        bounds = tf.stack([tf.reduce_min(values), tf.reduce_max(values)])
        # Widen the range if all weights are equal, such as a bias at the start.
        bounds += tf.where(bounds[0] < bounds[1], 0.0, 1e-6) * tf.constant([-1.0, 1.0])
        ranges.append(bounds)
        counts.append(tf.histogram_fixed_width(values, bounds, _BUCKETS))
    return tf.stack(ranges), tf.stack(counts)


def _histogram(
    bounds: npt.NDArray[np.float32], counts: npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    """Return TensorBoard's format: left edge, right edge and count of each bucket."""
    edges = np.linspace(bounds[0], bounds[1], len(counts) + 1, dtype=np.float64)
    return np.stack([edges[:-1], edges[1:], counts.astype(np.float64)], axis=1)
