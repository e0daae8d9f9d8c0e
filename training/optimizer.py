"""Adam and its learning-rate schedule, the same under every strategy and TensorFlow version.

Keras' optimizers are not used: Keras 3 clips gradients before the replicas' sum (so a norm is taken
of a part) and can't be told to leave the sum to the caller, which gradient accumulation needs
(keras#20582).
"""

import math
from collections.abc import Callable, Sequence

import tensorflow as tf

Schedule = Callable[[tf.Tensor], tf.Tensor]

_MOMENTUM = 0.9
# Short runs profit from a shorter memory of squares than Adam's usual 0.999.
_SQUARES_MOMENTUM = 0.99
_EPSILON = 1e-7


def warmup_cosine(peak: float, warmup_fraction: float, steps: int) -> Schedule:
    """Rise linearly to `peak` during the warm-up, then fall to zero along half a cosine.

    The returned function maps a step, counted from 0, to its learning rate.
    """
    warmup = max(1.0, warmup_fraction * steps)
    decay = max(1.0, steps - warmup)

    def rate(step: tf.Tensor) -> tf.Tensor:
        position = tf.cast(step, tf.float32) + 1.0
        rising = position / warmup
        part = tf.clip_by_value((position - warmup) / decay, 0.0, 1.0)
        falling = 0.5 * (1.0 + tf.cos(math.pi * part))
        return peak * tf.where(position < warmup, rising, falling)

    return rate


class Adam(tf.Module):  # type: ignore[misc]
    """Adam (Kingma and Ba, arXiv:1412.6980)."""

    def __init__(self, variables: Sequence[tf.Variable], schedule: Schedule) -> None:
        """Keep two moments for each of `variables`; create it in the strategy's scope."""
        super().__init__()
        self._variables = list(variables)
        self.rate = schedule
        self.first = [_zeros_like(variable, "first") for variable in variables]
        self.second = [_zeros_like(variable, "second") for variable in variables]

    def apply(self, gradients: Sequence[tf.Tensor], step: tf.Tensor) -> None:
        """Sum `gradients` over the replicas and update; call it in replica context.

        `step` counts from 0 and is the same in every replica.
        """
        context = tf.distribute.get_replica_context()
        summed = context.all_reduce(tf.distribute.ReduceOp.SUM, list(gradients))
        count = tf.cast(step, tf.float32) + 1.0
        # Both bias corrections of the paper, moved into the rate (end of its section 2).
        correction = tf.sqrt(1.0 - _SQUARES_MOMENTUM**count) / (1.0 - _MOMENTUM**count)
        rate = self.rate(step) * correction
        context.merge_call(self._update, args=(summed, rate))

    def _update(
        self, strategy: tf.distribute.Strategy, gradients: Sequence[tf.Tensor], rate: tf.Tensor
    ) -> None:
        """Update each variable on every device that holds a copy of it."""
        # By index: TensorFlow 2.12 can't compile a zip with strict.
        for index, gradient in enumerate(gradients):
            moments = (self.first[index], self.second[index])
            strategy.extended.update(
                self._variables[index], _adam_step, args=(*moments, gradient, rate), group=True
            )


def _adam_step(
    variable: tf.Variable,
    first: tf.Variable,
    second: tf.Variable,
    gradient: tf.Tensor,
    rate: tf.Tensor,
) -> None:
    mean = first.assign(_MOMENTUM * first + (1.0 - _MOMENTUM) * gradient)
    square = second.assign(
        _SQUARES_MOMENTUM * second + (1.0 - _SQUARES_MOMENTUM) * tf.square(gradient)
    )
    variable.assign_sub(rate * mean / (tf.sqrt(square) + _EPSILON))


def _zeros_like(variable: tf.Variable, name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape), trainable=False, name=name)
