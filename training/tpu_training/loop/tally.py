"""Count a task's metrics on the devices: all sums in two vectors, of numbers and of counts."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.loop.graphs import with_autograph
from tpu_training.models.model import check_sums, check_value, checked_metrics
from tpu_training.models.spec import DataSpec
from tpu_training.models.task import Metric, Task

# The confusion of classes, nested by true and predicted class.
Tables = dict[str, list[Any]]


class Tally:
    """The sums of `metrics`, packed for a variable and unpacked into figures.

    Integers, and the numbers of float64, stay apart from float32: it knows no odd number above 16.7
    million.
    """

    def __init__(self, metrics: Sequence[Metric], sums: Sequence[Sequence[tf.TensorSpec]]) -> None:
        """Count `metrics`, each of which has the `sums`, which `measure` finds out."""
        self._metrics, self._sums = metrics, sums
        flat = [spec for specs in sums for spec in specs]
        numbers = [spec.dtype for spec in flat if spec.dtype.is_floating]
        self.dtype = tf.float64 if tf.float64 in numbers else tf.float32
        sizes = [(spec.dtype.is_integer, math.prod(spec.shape)) for spec in flat]
        self.counts = sum(size for is_count, size in sizes if is_count)
        self.numbers = sum(size for is_count, size in sizes if not is_count)

    def count(
        self, outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the numbers (numbers,) and the counts (counts,), int64, of a batch."""
        numbers = [tf.zeros((0,), self.dtype)]
        counts = [tf.zeros((0,), tf.int64)]
        for metric in self._metrics:
            for each in _as_tuple(metric.sums(outputs, targets, weights)):
                flat = tf.reshape(each, [-1])
                if each.dtype.is_integer:
                    counts.append(tf.cast(flat, tf.int64))
                else:
                    numbers.append(tf.cast(flat, self.dtype))
        return tf.concat(numbers, axis=0), tf.concat(counts, axis=0)

    def figures(
        self, numbers: npt.NDArray[Any], counts: npt.NDArray[Any]
    ) -> tuple[dict[str, float], Tables]:
        """Return the metrics of the sums by name, and those that are tables."""
        left = {True: counts, False: numbers}
        figures: dict[str, float] = {}
        tables: Tables = {}
        for metric, specs in zip(self._metrics, self._sums, strict=True):
            parts = []
            for spec in specs:
                kind, size = spec.dtype.is_integer, math.prod(spec.shape)
                parts.append(left[kind][:size].reshape(spec.shape))
                left[kind] = left[kind][size:]
            sums = parts[0] if len(parts) == 1 else tuple(parts)
            if metric.value is None:
                tables[metric.name] = np.asarray(sums).tolist()
            else:
                figures[metric.name] = float(metric.value(sums))
        return figures, tables

    def figures_of(self, sums: npt.NDArray[Any]) -> dict[str, float]:
        """Return the metrics of the numbers and then the counts in `sums`."""
        return self.figures(sums[: self.numbers], sums[self.numbers :])[0]


def create_tally(task: Task, spec: DataSpec, model_spec: DataSpec, *, training: bool) -> Tally:
    """Return the tally of the task's metrics for examples of `spec`; traces each of them.

    Raises:
        InputError: A metric of the user's own gives no sums; with its file and line.
    """
    if not task.own:
        metrics = [m for m in task.metrics(model_spec) if m.in_training or not training]
        return Tally(metrics, [_specs(sums) for sums in _trace(task, metrics, spec, model_spec, 2)])
    metrics = [
        dataclasses.replace(metric, sums=with_autograph(metric.sums))
        for metric in checked_metrics(task, model_spec)
        if metric.in_training or not training
    ]
    few, more = (_trace(task, metrics, spec, model_spec, count) for count in (2, 3))
    originals = {metric.name: metric for metric in task.metrics(model_spec)}
    for metric, sums, others in zip(metrics, few, more, strict=True):
        check_sums(originals[metric.name], sums, others)
        if metric.value:
            ones = [np.ones(each.shape, each.dtype.as_numpy_dtype) for each in sums]
            check_value(metric, metric.value(ones[0] if len(ones) == 1 else tuple(ones)))
    return Tally(metrics, [_specs(sums) for sums in few])


def _trace(
    task: Task, metrics: Sequence[Metric], spec: DataSpec, model_spec: DataSpec, examples: int
) -> list[tuple[Any, ...]]:
    """Return the symbolic sums of each metric for a batch of `examples`."""
    with tf.Graph().as_default():
        features, targets, outputs, weights = (
            tf.compat.v1.placeholder(dtype, (examples, *shape))
            for dtype, shape in (
                (spec.dtype, spec.shape),
                (spec.target_dtype, spec.target_shape),
                ("float32", model_spec.output_shape),
                ("float32", ()),
            )
        )
        if task.prepare:
            features, targets = task.prepare(spec)(features, targets, False)
        return [_as_tuple(metric.sums(outputs, targets, weights)) for metric in metrics]


def _specs(sums: Sequence[Any]) -> list[tf.TensorSpec]:
    return [tf.TensorSpec(each.shape, each.dtype) for each in sums]


def _as_tuple(sums: Any) -> tuple[Any, ...]:
    return tuple(sums) if isinstance(sums, tuple | list) else (sums,)
