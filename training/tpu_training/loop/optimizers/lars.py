"""LARS, for batches so large that each layer needs its own rate."""

import tensorflow as tf

from tpu_training.loop.optimizers.base import Change
from tpu_training.loop.optimizers.sgd import Sgd

_TRUST = 0.001


class Lars(Sgd):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888).

    Biases and normalisations, which have no weight decay, are updated as in Sgd.
    """

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Scale the rate by the ratio of the norms of the weights and of their gradient."""
        if len(variable.shape) > 1:
            weights, gradient = tf.norm(variable), tf.norm(change.gradient)
            ratio = _TRUST * weights / (gradient + self.decay(variable) * weights)
            scale = tf.where((weights > 0.0) & (gradient > 0.0), ratio, 1.0)
            change = change._replace(rate=change.rate * scale)
        super().update(variable, change)
