"""Stochastic gradient descent with momentum."""

from typing import Any

import tensorflow as tf

from tpu_training.loop.optimizers.base import Change, Optimizer


class Sgd(Optimizer):
    """SGD with momentum and with weight decay in the gradient, as usual for ResNets."""

    slot_names = ("velocity",)

    def __init__(self, *arguments: Any, momentum: float, **others: Any) -> None:
        """Keep the part `momentum` of the velocity each step."""
        super().__init__(*arguments, **others)
        self._momentum = momentum

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Set velocity = momentum * velocity + gradient; variable -= rate * its direction."""
        (velocity,), gradient, rate, _, decay, _ = change
        if decay:
            gradient += decay * variable
        moved = velocity.assign(self._momentum * velocity + gradient)
        variable.assign_sub(rate * self._direction(moved, gradient))

    def _direction(self, velocity: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        return velocity


class Nesterov(Sgd):
    """SGD with Nesterov's momentum, as Sutskever et al. write it (PMLR 28(3):1139, 2013)."""

    def _direction(self, velocity: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        return self._momentum * velocity + gradient
