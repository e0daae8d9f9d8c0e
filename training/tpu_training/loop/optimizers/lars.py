"""LARS, for batches so large that each layer needs its own rate."""

import tensorflow as tf

from tpu_training.loop.optimizers.base import Change
from tpu_training.loop.optimizers.sgd import Sgd

_TRUST = 0.001


class Lars(Sgd):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg, arXiv:1708.03888).

    The velocity adds up steps, each with the rate and the ratio of its time, as in the paper's
    algorithm 1. Biases and normalisations, which have no weight decay, take the rate as it is.
    """

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Scale the rate by the ratio of the norms of the weights and of their gradient."""
        (velocity,), gradient, rate, _, decay, is_weight = change
        if is_weight:
            weights, norm = tf.norm(variable), tf.norm(gradient)
            ratio = _TRUST * weights / (norm + decay * weights)
            rate *= tf.where((weights > 0.0) & (norm > 0.0), ratio, 1.0)
            gradient += decay * variable
        moved = velocity.assign(self._momentum * velocity + rate * gradient)
        variable.assign_sub(moved)
