"""A class for each token: cross-entropy over the tokens that have one."""

import dataclasses
from collections.abc import Sequence

import tensorflow as tf

from tpu_training.models.params import Params
from tpu_training.models.spec import TOKEN_CLASSES, DataSpec
from tpu_training.models.task import Metric, Task, mean
from tpu_training.tasks.classification import predictions
from tpu_training.tasks.counting import cross_entropy, f1_metric, masked_mean, right


def model_spec(spec: DataSpec) -> DataSpec:
    """Ask the model for a row of logits for each token."""
    return dataclasses.replace(spec, outputs=(*spec.shape, spec.classes))


def losses(logits: tf.Tensor, targets: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits (batch, length, classes) and targets (batch, length) to each example's mean."""
    return masked_mean(cross_entropy(logits, targets, params.label_smoothing), targets)


def metrics(spec: DataSpec) -> Sequence[Metric]:
    """Count right tokens, and F1 of the classes; tokens without a class do not count."""
    return [Metric("accuracy", right, mean), f1_metric(spec.classes)]


task = Task(
    name="token_classification",
    losses=losses,
    metrics=metrics,
    targets=TOKEN_CLASSES,
    model_spec=model_spec,
    predictions=predictions,
    best="macro_f1",
    higher_is_better=True,
)
