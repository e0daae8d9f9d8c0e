"""What tasks count over the examples of a batch, and the metrics that several share.

An example of weight 0 only fills the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.models.params import Params
from tpu_training.models.spec import IGNORED, DataSpec
from tpu_training.models.task import Metric, mean


def count(which: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return how many of `which`, bool (batch, …), are true, int32."""
    whole = tf.reshape(tf.cast(weights, tf.int32), (-1, *[1] * (which.shape.rank - 1)))
    return tf.reduce_sum(tf.cast(which, tf.int32) * whole)


def add(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return the sum of `values` (batch, …), float32."""
    each = tf.reshape(weights, (-1, *[1] * (values.shape.rank - 1)))
    return tf.reduce_sum(tf.cast(values, tf.float32) * each)


def confusion(
    targets: tf.Tensor, predicted: tf.Tensor, weights: tf.Tensor, classes: int
) -> tf.Tensor:
    """Count true and predicted classes (batch, …), as products of matrices: TPUs are made for them.

    Classes that are IGNORED do not count.
    """
    if targets.shape.rank == 1:
        rows = tf.one_hot(targets, classes) * weights[:, None]
        pairs = tf.matmul(rows, tf.one_hot(predicted, classes), transpose_a=True)
        return tf.cast(pairs, tf.int32)
    true = tf.one_hot(tf.reshape(targets, (tf.shape(targets)[0], -1)), classes)
    found = tf.one_hot(tf.reshape(predicted, (tf.shape(predicted)[0], -1)), classes)
    # Example by example: float32 counts the elements of one exactly, but not those of a batch.
    each = tf.matmul(true, found, transpose_a=True) * weights[:, None, None]
    return tf.reduce_sum(tf.cast(each, tf.int32), axis=0)


def masked_mean(values: tf.Tensor, targets: tf.Tensor) -> tf.Tensor:
    """Return each example's mean of `values` (batch, …) where `targets` are not IGNORED."""
    counted = tf.cast(tf.not_equal(targets, IGNORED), tf.float32)
    axes = list(range(1, values.shape.rank))
    total = tf.reduce_sum(values * counted, axis=axes)
    return total / tf.maximum(tf.reduce_sum(counted, axis=axes), 1.0)


def cross_entropy(logits: tf.Tensor, targets: tf.Tensor, smoothing: float = 0.0) -> tf.Tensor:
    """Return the cross-entropy at each place, float32 like `targets`; 0 where it is IGNORED.

    `smoothing` spreads that part of each target over all classes.
    """
    counted = tf.not_equal(targets, IGNORED)
    some = tf.where(counted, targets, 0)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(some, tf.cast(logits, tf.float32))
    if smoothing:
        spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        each = (1.0 - smoothing) * each + smoothing * spread
    return tf.where(counted, each, 0.0)


def right(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Count the examples whose greatest logit is their class's, and all."""
    predicted = tf.argmax(logits, axis=-1, output_type=tf.int32)
    return tf.stack([count(tf.equal(predicted, targets), weights), count(targets >= 0, weights)])


# The mean F1 of classes, from three counts for each.


def f1_metric(classes: int) -> Metric:
    """Return the metric `macro_f1`, the mean over those of `classes` that occur."""

    def answers(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return class_counts(logits, targets, weights, classes)

    return Metric("macro_f1", answers, macro_f1, in_training=False)


def class_counts(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor, classes: int
) -> tf.Tensor:
    """Count by class: right answers, predictions, true labels; (3, classes)."""
    found = tf.argmax(logits, axis=-1, output_type=tf.int32)
    pairs = confusion(targets, found, weights, classes)
    return tf.stack(
        [tf.linalg.diag_part(pairs), tf.reduce_sum(pairs, axis=0), tf.reduce_sum(pairs, axis=1)]
    )


def macro_f1(sums: npt.NDArray[Any]) -> float:
    """Return the mean F1 of the classes that occur or are predicted."""
    right, predicted, actual = sums
    occurs = predicted + actual > 0
    return float(np.mean(2 * right[occurs] / (predicted + actual)[occurs])) if occurs.any() else 0.0


def mean_iou(sums: npt.NDArray[Any]) -> float:
    """Return the mean intersection over union of the classes that occur or are predicted."""
    right, predicted, actual = sums
    union = predicted + actual - right
    occurs = union > 0
    return float(np.mean(right[occurs] / union[occurs])) if occurs.any() else 0.0


# What language models share: the cross-entropy of tokens and its exponential, the perplexity.

# Beyond it the exponential says nothing but that the model knows nothing.
_LARGEST_LOSS = 50.0


def token_losses(logits: tf.Tensor, targets: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits (batch, length, vocabulary) and targets (batch, length) to each example's mean."""
    return masked_mean(cross_entropy(logits, targets, params.label_smoothing), targets)


def token_metrics(spec: DataSpec) -> Sequence[Metric]:
    """Average over tokens, not over examples, some of which are shorter."""
    return [
        Metric("token_loss", token_loss_sums, mean, in_training=False),
        Metric("perplexity", token_loss_sums, perplexity, in_training=False),
        Metric("accuracy", right, mean),
    ]


def token_loss_sums(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Add up the losses of all tokens that count, and their number."""
    counted = count(tf.not_equal(targets, IGNORED), weights)
    return add(cross_entropy(logits, targets), weights), counted


def perplexity(sums: Sequence[npt.NDArray[Any]]) -> float:
    """Return e to the mean loss of a token."""
    return math.exp(min(mean(sums), _LARGEST_LOSS))
