"""The base of all optimizers: slots for each variable, clipping, the update of every copy."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import tensorflow as tf

from tpu_training.loop.optimizers.schedules import Schedule

# What biases and the parameters of normalisations are called, here and in Keras. A bias of Keras'
# MultiHeadAttention has two axes, as has a scale of a LayerNormalization over two.
_OFFSETS_AND_SCALES = ("bias", "offset", "scale", "beta", "gamma")


class Change(NamedTuple):
    """What changes a variable: its slots, its gradient, the rate of the step and its decay.

    `is_weight` says that it is neither a bias nor of a normalisation: only weights decay.
    """

    slots: Sequence[tf.Variable]
    gradient: tf.Tensor
    rate: tf.Tensor
    step: tf.Tensor
    decay: float
    is_weight: bool


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
        paths: Sequence[str] = (),
    ) -> None:
        """Create slots for each of `variables`; call in the strategy's scope.

        `clip_norm` limits the global norm of the gradients; 0 does not clip. Each variable has a
        factor of the rate in `rate_factors` and its place in the model in `paths`.
        """
        super().__init__()
        self._variables = list(variables)
        self._are_weights = [is_weight(*pair) for pair in zip(paths, variables, strict=True)]
        self._weight_decay = weight_decay
        self._clip_norm = clip_norm
        self._rate_factors = tuple(rate_factors)
        self.rate = schedule
        self.slots = [
            [_zeros_like(variable, name) for name in self.names_of(path, variable)]
            for path, variable in zip(paths, variables, strict=True)
        ]

    def names_of(self, path: str, variable: tf.Variable) -> tuple[str, ...]:
        """Return the names of the slots of the `variable` at `path`."""
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

    def _update_all(
        self,
        strategy: tf.distribute.Strategy,
        gradients: Sequence[tf.Tensor],
        rate: tf.Tensor,
        step: tf.Tensor,
    ) -> None:
        # TensorFlow 2.12 can't compile zip with strict.
        for index, gradient in enumerate(gradients):
            is_weight = self._are_weights[index]
            decay = self._weight_decay if is_weight else 0.0
            change = Change(self.slots[index], gradient, rate, step, decay, is_weight)
            arguments = (change, self._rate_factors[index])
            strategy.extended.update(
                self._variables[index], self._update_copy, args=arguments, group=True
            )

    def _update_copy(self, variable: tf.Variable, change: Change, factor: float) -> None:
        self.update(variable, change._replace(rate=change.rate * factor))


def is_weight(path: str, variable: tf.Variable) -> bool:
    """Return whether the variable at `path` is neither a bias nor of a normalisation."""
    return len(variable.shape) > 1 and path.rpartition("/")[2] not in _OFFSETS_AND_SCALES


def _zeros_like(variable: tf.Variable, name: str) -> tf.Variable:
    return tf.Variable(tf.zeros(variable.shape), trainable=False, name=name)
