"""The base of all optimizers: slots for each variable, clipping, the update of every copy."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import tensorflow as tf

from tpu_training.loop.optimizers.schedules import Schedule


class Change(NamedTuple):
    """What changes a variable: its slots, its gradient, and the rate of the step."""

    slots: Sequence[tf.Variable]
    gradient: tf.Tensor
    rate: tf.Tensor
    step: tf.Tensor


class Optimizer(tf.Module):  # type: ignore[misc]
    """An optimizer; subclasses implement the update of one variable."""

    slot_names: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        variables: Sequence[tf.Variable],
        schedule: Schedule,
        weight_decay: float = 0.0,
        clip_norm: float = 0.0,
        rate_factors: Sequence[float] = (),
    ) -> None:
        """Create slots for each of `variables`; call in the strategy's scope.

        `clip_norm` limits the global norm of the gradients; 0 does not clip. `rate_factors` has a
        factor of the rate for each variable; without it all learn at the same rate.
        """
        super().__init__()
        self._variables = list(variables)
        self._weight_decay = weight_decay
        self._clip_norm = clip_norm
        self._rate_factors = tuple(rate_factors) or (1.0,) * len(self._variables)
        self.rate = schedule
        self.slots = [[_zeros_like(v, name) for name in self.names_of(v)] for v in variables]

    def names_of(self, variable: tf.Variable) -> tuple[str, ...]:
        """Return the names of the slots of `variable`."""
        return self.slot_names

    def apply(self, gradients: Sequence[tf.Tensor], step: tf.Tensor) -> None:
        """Update the variables; call in replica context.

        `gradients` must be summed over all replicas already, since clipping needs the norm of the
        sum. `step` counts from 0.
        """
        if self._clip_norm:
            gradients, _ = tf.clip_by_global_norm(list(gradients), self._clip_norm)
        context = tf.distribute.get_replica_context()
        context.merge_call(self._update_all, args=(list(gradients), self.rate(step), step))

    def update(self, variable: tf.Variable, change: Change) -> None:
        """Update one copy of one variable."""
        raise NotImplementedError

    def decay(self, variable: tf.Variable) -> float:
        """Return the weight decay of `variable`: 0 for biases and normalisation scales."""
        return self._weight_decay if len(variable.shape) > 1 else 0.0

    def _update_all(
        self,
        strategy: tf.distribute.Strategy,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
        step: tf.Tensor,
    ) -> None:
        # TensorFlow 2.12 can't compile zip with strict.
        for index, gradient in enumerate(gradients):
            change = Change(self.slots[index], gradient, rate, step)
            arguments = (change, self._rate_factors[index])
            strategy.extended.update(
                self._variables[index], self._update_copy, args=arguments, group=True
            )

    def _update_copy(self, variable: tf.Variable, change: Change, factor: float) -> None:
        self.update(variable, change._replace(rate=change.rate * factor))


def _zeros_like(variable: tf.Variable, name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape), trainable=False, name=name)
