"""Adam, with decoupled weight decay (AdamW)."""

from typing import Any, ClassVar

import tensorflow as tf

from tpu_training.loop.optimizers.base import Change, Optimizer

_EPSILON = 1e-7


class Adam(Optimizer):
    """Adam (Kingma and Ba, arXiv:1412.6980; the decay: Loshchilov and Hutter, arXiv:1711.05101)."""

    slot_names: ClassVar[tuple[str, ...]] = ("first", "second")

    def __init__(self, *arguments: Any, beta_1: float, beta_2: float, **others: Any) -> None:
        """Set the decay rates of the gradients' mean (`beta_1`) and of their squares (`beta_2`)."""
        super().__init__(*arguments, **others)
        self._beta_1, self._beta_2 = beta_1, beta_2

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Update one copy, with both bias corrections in the rate (end of its section 2)."""
        (first, second), gradient, rate, step, decay, _ = change
        count = tf.cast(step, tf.float32) + 1.0
        corrected = rate * tf.sqrt(1.0 - self._beta_2**count) / (1.0 - self._beta_1**count)
        mean = first.assign(self._beta_1 * first + (1.0 - self._beta_1) * gradient)
        square = second.assign(self._beta_2 * second + (1.0 - self._beta_2) * tf.square(gradient))
        difference = corrected * mean / (tf.sqrt(square) + _EPSILON)
        if decay:
            difference += rate * decay * variable
        variable.assign_sub(difference)
