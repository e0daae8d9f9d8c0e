"""A class for each pixel: cross-entropy, accuracy, mean intersection over union."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tpu_training.models.params import Params
from tpu_training.models.spec import MASK, DataSpec, image_shape
from tpu_training.models.task import Metric, Task, mean
from tpu_training.tasks.classification import predictions
from tpu_training.tasks.counting import class_counts, cross_entropy, masked_mean, mean_iou, right


def model_spec(spec: DataSpec) -> DataSpec:
    """Ask the model for a row of logits for each pixel."""
    height, width, _ = image_shape(spec)
    return dataclasses.replace(spec, outputs=(height, width, spec.classes))


def losses(logits: tf.Tensor, targets: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits (batch, height, width, classes) and targets (batch, height, width)."""
    return masked_mean(cross_entropy(logits, targets, params.label_smoothing), targets)


def metrics(spec: DataSpec) -> Sequence[Metric]:
    """Count right pixels and those of each class; pixels without a class do not count."""

    def answers(logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return class_counts(logits, targets, weights, spec.classes)

    return [
        Metric("accuracy", right, mean),
        Metric("mean_iou", answers, mean_iou, in_training=False),
    ]


task = Task(
    name="segmentation",
    losses=losses,
    metrics=metrics,
    targets=MASK,
    model_spec=model_spec,
    predictions=predictions,
    best="mean_iou",
    higher_is_better=True,
)
