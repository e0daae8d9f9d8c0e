"""The exponential moving average of a model's weights, which evaluations and exports use."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property

import tensorflow as tf

from tpu_training.cluster.cluster import Cluster
from tpu_training.models.model import variable_paths


class WeightAverage(tf.Module):  # type: ignore[misc]
    """A second set of a model's weights that follows them, moving averages included.

    Averaging the statistics of batch normalisation too, as TensorFlow's Model Garden does
    (official/modeling/optimization/ema_optimizer.py), keeps them those of the averaged weights.
    """

    def __init__(self, model: tf.Module, frozen: frozenset[int], decay: float) -> None:
        """Start with the model's weights, except those in `frozen`; call in the strategy's scope.

        In the first steps the decay is (1 + step) / (10 + step), as of tf.train's average, so that
        the first weights are soon forgotten.
        """
        super().__init__()
        self._decay, self._strategy = decay, tf.distribute.get_strategy()
        followed = {
            path: variable
            for path, variable in variable_paths(model)
            if variable.dtype.is_floating and id(variable) not in frozen
        }
        self._followed = list(followed.values())
        self.shadows = {path: _copy(variable) for path, variable in followed.items()}

    def update(self, step: tf.Tensor) -> None:
        """Follow the weights after `step`, counted from 0; call in replica context."""
        done = tf.cast(step, tf.float32)
        share = 1.0 - tf.minimum(self._decay, (1.0 + done) / (10.0 + done))
        tf.distribute.get_replica_context().merge_call(self._update_all, args=(share,))

    def exchange(self) -> None:
        """Put the average into the model and the model's weights here, or back; as `update`."""
        tf.distribute.get_replica_context().merge_call(self._exchange_all)

    @cached_property
    def swap(self) -> Callable[[], object]:
        """What exchanges the two on all replicas, compiled once for all evaluations."""
        run = tf.function(lambda: self._strategy.run(self.exchange), autograph=False)
        return lambda: run()  # Held by a function: TensorFlow would save its own.

    def reset(self) -> None:
        """Start anew with the model's weights."""
        for shadow, variable in zip(self.shadows.values(), self._followed, strict=True):
            shadow.assign(variable.read_value())

    def _update_all(self, strategy: tf.distribute.Strategy, share: tf.Tensor) -> None:
        for index, shadow in enumerate(self.shadows.values()):
            arguments = (self._followed[index], share)
            strategy.extended.update(shadow, _approach, args=arguments, group=True)

    def _exchange_all(self, strategy: tf.distribute.Strategy) -> None:
        for index, shadow in enumerate(self.shadows.values()):
            strategy.extended.update(shadow, _swap, args=(self._followed[index],), group=True)


@contextmanager
def averaged(cluster: Cluster, average: WeightAverage | None) -> Iterator[None]:
    """Let the model have its averaged weights; without an average those that it has."""
    if average is None:
        yield
        return
    with cluster.on_loop_device():
        average.swap()
    try:
        yield
    finally:
        with cluster.on_loop_device():
            average.swap()


def _copy(variable: tf.Variable) -> tf.Variable:
    value = tf.convert_to_tensor(variable)
    return tf.Variable(value, trainable=False, name="average")


def _approach(shadow: tf.Variable, variable: tf.Variable, share: tf.Tensor) -> None:
    value = tf.cast(tf.convert_to_tensor(variable), shadow.dtype)
    shadow.assign_add(tf.cast(share, shadow.dtype) * (value - shadow))


def _swap(shadow: tf.Variable, variable: tf.Variable) -> None:
    first, second = tf.identity(shadow.read_value()), tf.identity(variable.read_value())
    with tf.control_dependencies([first, second]):
        shadow.assign(second, read_value=False)
        variable.assign(first, read_value=False)
