"""One class for each example: softmax cross-entropy, accuracy, and which are taken for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf

from tpu_training.models.params import Params
from tpu_training.models.spec import CLASS, DataSpec
from tpu_training.models.task import Metric, Task, mean
from tpu_training.tasks.counting import confusion, right

# The confusion of more classes is a picture too large to read.
_MOST_CLASSES = 100


def softmax_cross_entropy(logits: tf.Tensor, labels: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits (batch, classes) and labels (batch,) to the loss of each example, (batch,).

    Label smoothing (Szegedy et al., arXiv:1512.00567) spreads part of each label over all classes.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not params.label_smoothing:
        return losses
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    return (1.0 - params.label_smoothing) * losses + params.label_smoothing * spread


def metrics(spec: DataSpec) -> Sequence[Metric]:
    """Count right answers; true and predicted classes as well, unless there are many."""

    def pairs(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        predicted = tf.argmax(logits, axis=-1, output_type=tf.int32)
        return confusion(targets, predicted, weights, spec.classes)

    found = [Metric("accuracy", right, mean)]
    if spec.classes <= _MOST_CLASSES:
        found.append(Metric("confusion", pairs, in_training=False))
    return found


def predictions(logits: tf.Tensor) -> Mapping[str, tf.Tensor]:
    """Return probabilities, float32 (batch, …, classes), and top classes, int32 (batch, …)."""
    probabilities = tf.nn.softmax(logits)
    classes = tf.argmax(probabilities, axis=-1, output_type=tf.int32)
    return {"probabilities": probabilities, "classes": classes}


task = Task(
    name="classification",
    losses=softmax_cross_entropy,
    metrics=metrics,
    targets=CLASS,
    predictions=predictions,
    best="accuracy",
    higher_is_better=True,
    gives_classes=True,
)
