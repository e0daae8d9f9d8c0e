"""Any number of labels for each example: sigmoid cross-entropy, F1 and exact matches."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tpu_training.models.params import Params
from tpu_training.models.spec import LABELS, DataSpec
from tpu_training.models.task import Metric, Task, mean
from tpu_training.tasks.counting import count


def losses(logits: tf.Tensor, targets: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits and targets (batch, labels), 1 for yes, to the mean over the labels.

    Label smoothing moves the targets towards one half.
    """
    smoothing = params.label_smoothing
    wanted = tf.cast(targets, tf.float32) * (1.0 - smoothing) + 0.5 * smoothing
    return tf.reduce_mean(
        tf.nn.sigmoid_cross_entropy_with_logits(labels=wanted, logits=logits), axis=-1
    )


def metrics(spec: DataSpec) -> Sequence[Metric]:
    """Count for each label; an answer is yes where its logit is above 0."""
    return [
        Metric("exact_match", exact, mean),
        Metric("micro_f1", answers, micro_f1),
        Metric("macro_f1", answers, macro_f1, in_training=False),
    ]


def exact(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Count the examples all of whose answers are right, and all."""
    same = tf.reduce_all(tf.equal(logits > 0, targets > 0), axis=-1)
    return tf.stack([count(same, weights), count(tf.ones_like(same), weights)])


def answers(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Count for each label yes that is right, yes that is wrong, no that is wrong: (3, labels)."""
    yes, true, rows = logits > 0, targets > 0, tf.cast(weights, tf.int32)[:, None]
    kinds = [yes & true, yes & ~true, ~yes & true]
    return tf.stack([tf.reduce_sum(tf.cast(kind, tf.int32) * rows, axis=0) for kind in kinds])


def micro_f1(sums: npt.NDArray[Any]) -> float:
    """Return F1 over all answers; 0 where there is no yes at all."""
    right, wrong, missed = sums.sum(axis=1)
    return float(2 * right / max(2 * right + wrong + missed, 1))


def macro_f1(sums: npt.NDArray[Any]) -> float:
    """Return the mean of the labels' F1; that of a label without any yes is 0."""
    right, wrong, missed = sums
    return float(np.mean(2 * right / np.maximum(2 * right + wrong + missed, 1)))


def predictions(logits: tf.Tensor) -> Mapping[str, tf.Tensor]:
    """Return the probability of each label."""
    return {"probabilities": tf.nn.sigmoid(logits)}


task = Task(
    name="multi_label",
    losses=losses,
    metrics=metrics,
    targets=LABELS,
    predictions=predictions,
    best="micro_f1",
    higher_is_better=True,
)
