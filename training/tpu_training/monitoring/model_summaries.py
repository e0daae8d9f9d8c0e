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
from tpu_training.data.manifest import TRAIN, VALIDATION
from tpu_training.errors import InputError
from tpu_training.errors.extras import require_plots
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.loop.state import TrainState
from tpu_training.models.names import variable_names
from tpu_training.models.params import Params
from tpu_training.monitoring.grid import draw_grid
from tpu_training.monitoring.summaries import Summaries

_EXAMPLES = 32
_BUCKETS = 30

logger = logging.getLogger(__name__)


class ModelSummaries(Callback):
    """Writes a summary every `snapshot_interval` steps and at the last one.

    Predictions and gradients are those of a few fixed examples of the validation set, or of the
    training set where there is none, without dropout, so that
    summaries can be compared. They do not affect the training.
    """

    def __init__(
        self,
        cluster: Cluster,
        params: Params,
        data: DataSet,
        state: TrainState,
        summaries: Summaries,
    ) -> None:
        """Write to `summaries`; read and compile nothing before the first summary is due."""
        self._cluster = cluster
        self._params = params
        self._data = data
        self._split = VALIDATION if VALIDATION in data.manifest.splits else TRAIN
        self._state = state
        self._summaries = summaries
        self._taken = 0
        self._sample: _Sample | None = None

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Write a summary if one is due."""
        interval = self._params.snapshot_interval
        if not interval or (step // interval == self._taken and step != report.last_step):
            return
        self._taken = step // interval
        if self._sample is None:
            self._sample = _Sample(
                self._cluster, self._params, self._data, self._state, self._split
            )
            self._summaries.graph(step, self._sample.graph)
        self._write(self._sample, step)

    def _write(self, sample: "_Sample", step: int) -> None:
        classes, norms, histograms = sample.look()
        names = variable_names(self._state.model)
        scalars = dict(zip((f"gradient_norm/{name}" for name in names), norms, strict=True))
        scalars["gradient_norm/all"] = float(np.linalg.norm(norms))
        self._summaries.scalars(step, scalars)
        weights = zip((f"weights/{name}" for name in names), histograms, strict=True)
        self._summaries.histograms(step, dict(weights))
        if not self._state.task.gives_classes:
            logger.info("snapshot: step %d", step)
            return
        if self._data.manifest.spec.kind == "image":
            self._write_picture(sample, step, classes)
        right = int((classes == sample.labels).sum())
        logger.info("snapshot: step %d, %d of %d samples right", step, right, len(classes))

    def _write_picture(self, sample: "_Sample", step: int, classes: npt.NDArray[np.int32]) -> None:
        try:
            require_plots("a picture of examples")
        except InputError as error:
            logger.warning("snapshot: %s", error)
            return
        png = draw_grid(sample.features, sample.labels, classes, self._data.manifest.class_names)
        self._summaries.picture(step, f"{self._split}/predictions", png)


class _Sample:
    """A few examples on the cluster's devices, and a compiled function that examines them."""

    def __init__(
        self, cluster: Cluster, params: Params, data: DataSet, state: TrainState, split: str
    ) -> None:
        self._cluster = cluster
        each = -(-_EXAMPLES // cluster.replicas)
        few = dataclasses.replace(params, evaluation_batch_size=each * cluster.replicas)
        with cluster.on_loop_device():
            self._batch = evaluation_batches(data, cluster, few, split)[0]()
            self._look = tf.function(create_look(cluster, params, state), autograph=False)
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


def create_look(
    cluster: Cluster, params: Params, state: TrainState
) -> Callable[..., tuple[tf.Tensor, ...]]:
    """Return a function that brings a few numbers for each variable, and no gradient, to the host.

    Norms and histograms are made in the replicas' program: the gradients of a ResNet-50 on eight
    cores are 0.8 GB.
    """
    strategy, variables = cluster.strategy, state.model.trainable_variables

    def replica_look(
        features: tf.Tensor, labels: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        with tf.GradientTape() as tape:
            inputs, targets = state.prepare(features, labels, False)
            outputs = state.forward(inputs, training=False)
            losses = state.losses(outputs, targets, params) * weights
            loss = tf.reduce_sum(losses) / _EXAMPLES
        gradients = tape.gradient(
            loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        dense = [tf.convert_to_tensor(gradient) for gradient in gradients]
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, dense)
        norms = tf.stack([tf.norm(gradient) for gradient in summed])
        classes = tf.zeros_like(weights, tf.int32)
        if state.task.gives_classes:
            classes = tf.argmax(outputs, axis=-1, output_type=tf.int32)
        return classes, norms, *_distributions(variables)

    def look(*batch: tf.Tensor) -> tuple[tf.Tensor, ...]:
        classes, *alike = strategy.run(replica_look, batch)
        return classes, *(strategy.experimental_local_results(value)[0] for value in alike)

    return look


def _distributions(variables: Sequence[tf.Variable]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return ranges (variables, 2) and counts (variables, buckets); call in replica context."""
    values = [tf.cast(tf.convert_to_tensor(variable), tf.float32) for variable in variables]
    lowest = tf.stack([tf.reduce_min(value) for value in values])
    highest = tf.stack([tf.reduce_max(value) for value in values])
    # Widen the range if all weights are equal, such as a bias at the start.
    spread = tf.where(lowest < highest, 0.0, 1e-6)
    lowest, highest = lowest - spread, highest + spread

    def count_from(bucket: tf.Tensor) -> tf.Tensor:
        """Count the weights in `bucket` and all above, as TPUs lack TensorFlow's histogram."""
        edges = lowest + (highest - lowest) * (tf.cast(bucket, tf.float32) / _BUCKETS)
        above = [value >= edge for value, edge in zip(values, tf.unstack(edges), strict=True)]
        return tf.stack([tf.reduce_sum(tf.cast(part, tf.int32)) for part in above])

    sizes = tf.constant([value.shape.num_elements() for value in values])
    inner = tf.map_fn(count_from, tf.range(1, _BUCKETS), fn_output_signature=tf.int32)
    from_each = tf.concat([[sizes], inner, [tf.zeros_like(sizes)]], axis=0)
    counts = tf.transpose(from_each[:-1] - from_each[1:])
    return tf.stack([lowest, highest], axis=1), counts


def _histogram(
    bounds: npt.NDArray[np.float32], counts: npt.NDArray[np.int32]
) -> npt.NDArray[np.float64]:
    """Return TensorBoard's format: left edge, right edge and count of each bucket."""
    edges = np.linspace(bounds[0], bounds[1], len(counts) + 1, dtype=np.float64)
    return np.stack([edges[:-1], edges[1:], counts.astype(np.float64)], axis=1)
