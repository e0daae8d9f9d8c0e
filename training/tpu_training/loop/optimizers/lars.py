"""LARS, for batches so large that layers need rates of their own."""

from collections.abc import Sequence

import tensorflow as tf

from tpu_training.loop.optimizers.sgd import Sgd

_TRUST = 0.001


class Lars(Sgd):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888).

    Biases and normalisations, which have no weight decay, are updated as by Sgd.
    """

    def update(
        self,
        variable: tf.Variable,
        slots: Sequence[tf.Variable],
        gradient: tf.Tensor,
        rate: tf.Tensor,
        step: tf.Tensor,
    ) -> None:
        """Scale the rate by the ratio of the norms of the weights and of their gradient."""
        if len(variable.shape) > 1:
            weights, change = tf.norm(variable), tf.norm(gradient)
            ratio = _TRUST * weights / (change + self.decay(variable) * weights)
            rate *= tf.where((weights > 0.0) & (change > 0.0), ratio, 1.0)
        super().update(variable, slots, gradient, rate, step)
