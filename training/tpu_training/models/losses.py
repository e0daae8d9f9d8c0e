"""The default loss of models."""

import tensorflow as tf

from tpu_training.models.params import Params


def softmax_cross_entropy(logits: tf.Tensor, labels: tf.Tensor, params: Params) -> tf.Tensor:
    """Map logits (batch, classes) and labels (batch,) to the loss of each example, (batch,).

    Label smoothing (Szegedy et al., arXiv:1512.00567) spreads part of each label over all classes.
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if not params.label_smoothing:
        return losses
    spread = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
    return (1.0 - params.label_smoothing) * losses + params.label_smoothing * spread
