"""Numbers for each example: mean squared error, and as metrics the mean absolute error and R²."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.models.params import Params
from tpu_training.models.spec import NUMBERS, DataSpec
from tpu_training.models.task import Metric, Task, mean
from tpu_training.tasks.counting import add, count


def losses(outputs: tf.Tensor, targets: tf.Tensor, params: Params) -> tf.Tensor:
    """Map outputs and targets (batch, numbers) to the mean squared error of each example."""
    return tf.reduce_mean(tf.square(outputs - targets), axis=-1)


def metrics(spec: DataSpec) -> Sequence[Metric]:
    """Add up absolute errors, and what the coefficient of determination needs."""
    return [Metric("mae", absolute, mean), Metric("r2", moments, determination, in_training=False)]


def absolute(outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Add up each example's mean absolute error, and count the examples."""
    errors = tf.reduce_mean(tf.abs(outputs - targets), axis=-1)
    return add(errors, weights), count(weights > 0, weights)


def moments(outputs: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tuple[tf.Tensor, ...]:
    """Add up squared errors, squares and values of each number, and count the examples.

    In float64: the difference of large squares is all that is left of a small variance.
    """
    true, found, rows = (tf.cast(x, tf.float64) for x in (targets, outputs, weights[:, None]))
    sums = (tf.square(found - true), tf.square(true), true)
    return *(tf.reduce_sum(rows * each, axis=0) for each in sums), count(weights > 0, weights)


def determination(sums: Sequence[npt.NDArray[Any]]) -> float:
    """Return R², the mean over the numbers: 1 less the part of the variance that is left."""
    errors, squares, total, examples = sums
    spread = squares - total**2 / max(int(examples), 1)
    return float(np.mean(1.0 - errors / np.maximum(spread, np.finfo(np.float64).tiny)))


task = Task(name="regression", losses=losses, metrics=metrics, targets=NUMBERS)
