"""The mean F1 of classes, from three counts for each."""

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.models.task import Metric
from tpu_training.tasks.counting import confusion


def f1_metric(classes: int) -> Metric:
    """Return the metric `macro_f1`, the mean over those of `classes` that occur."""

    def answers(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return class_counts(logits, targets, weights, classes)

    return Metric("macro_f1", answers, macro_f1, in_training=False)


def class_counts(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, classes: int
) -> tf.Tensor:
    """Count right answers, those that say so and those that are so, by class: (3, classes)."""
    found = tf.argmax(logits, axis=-1, output_type=tf.int32)
    pairs = confusion(targets, found, weights, classes)
    return tf.stack(
        [tf.linalg.diag_part(pairs), tf.reduce_sum(pairs, axis=0), tf.reduce_sum(pairs, axis=1)]
    )


def macro_f1(sums: npt.NDArray[Any]) -> float:
    """Return the mean F1 of the classes that occur or are said to."""
    right, said, true = sums
    occurs = said + true > 0
    return float(np.mean(2 * right[occurs] / (said + true)[occurs])) if occurs.any() else 0.0


def mean_iou(sums: npt.NDArray[Any]) -> float:
    """Return the mean intersection over union of the classes that occur or are said to."""
    right, said, true = sums
    union = said + true - right
    occurs = union > 0
    return float(np.mean(right[occurs] / union[occurs])) if occurs.any() else 0.0
