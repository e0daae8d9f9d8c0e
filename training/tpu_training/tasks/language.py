"""What language models share: the cross-entropy of tokens and its exponential, the perplexity."""

import math
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt
import tensorflow as tf

from tpu_training.models.params import Params
from tpu_training.models.spec import IGNORED, DataSpec
from tpu_training.models.task import Metric, mean
from tpu_training.tasks.counting import add, count, cross_entropy, masked_mean, right

# Beyond it the exponential says nothing but that the model knows nothing.
_LARGEST = 50.0


def losses(logits: tf.Tensor, targets: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits (batch, length, vocabulary) and targets (batch, length) to each example's mean."""
    return masked_mean(cross_entropy(logits, targets, params.label_smoothing), targets)


def metrics(spec: DataSpec) -> Sequence[Metric]:
    """Average over tokens, not over examples, some of which are shorter."""
    return [
        Metric("token_loss", token_losses, mean, in_training=False),
        Metric("perplexity", token_losses, perplexity, in_training=False),
        Metric("accuracy", right, mean),
    ]


def token_losses(
    logits: tf.Tensor, targets: tf.Tensor, weights: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Add up the losses of all tokens that count, and their number."""
    counted = count(tf.not_equal(targets, IGNORED), weights)
    return add(cross_entropy(logits, targets), weights), counted


def perplexity(sums: Sequence[npt.NDArray[Any]]) -> float:
    """Return e to the mean loss of a token."""
    return math.exp(min(mean(sums), _LARGEST))
