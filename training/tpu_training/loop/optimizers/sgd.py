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
        """Set velocity = momentum * velocity + gradient; variable -= rate * velocity."""
        (velocity,), gradient, rate, _ = change
        if decay := self.decay(variable):
            gradient += decay * variable
        variable.assign_sub(rate * velocity.assign(self._momentum * velocity + gradient))
