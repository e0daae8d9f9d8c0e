"""The loss of models that bring none of their own."""

import tensorflow as tf

from training.params import Params


def softmax_cross_entropy(logits: tf.Tensor, labels: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits (batch, classes) and labels (batch,) to the loss of each example, (batch,)."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
