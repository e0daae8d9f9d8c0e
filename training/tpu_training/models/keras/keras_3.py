"""Call a model of Keras 3 without side effects: all that it changes goes through the step.

In a keras.StatelessScope an assignment to a variable changes nothing but what the scope knows. So
batch normalisation's averages are handed to `record_statistic`, and each seed generator starts
from a seed of the step, so that a repeated step draws the same numbers.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.models.step_context import next_seed, record_penalty, record_statistic

_SEED = "seed_generator_state"
_LARGEST_SEED = 2**31 - 1

Pair = tuple[Any, tf.Variable]


def variables(model: Any) -> list[Pair]:
    """Return Keras' variables, but for those of seed generators, each with TensorFlow's."""
    return [(variable, variable.value) for variable in model.variables if not _is_seed(variable)]


def create_forward(model: Any, where: str) -> Callable[[tf.Tensor, bool], tf.Tensor]:
    """Return a function that maps features and `training` to the outputs of `model`."""
    from keras import StatelessScope

    seeds = [variable for variable in model.variables if _is_seed(variable)]
    kept = [variable for variable in model.non_trainable_variables if not _is_seed(variable)]
    # In a scope Keras looks nowhere else for what a regularizer wants.
    penalised = [variable for variable in model.trainable_variables if variable.regularizer]
    known = {id(variable) for variable in (*model.variables, *model.metrics_variables)}

    def forward(features: tf.Tensor, training: bool) -> tf.Tensor:
        given = [(seed, _draw(seed, number, training)) for number, seed in enumerate(seeds)]
        given += [(variable, variable.value) for variable in penalised]
        with StatelessScope(given, collect_losses=training) as scope:
            outputs = model(features, training=training)
            penalties = list(model.losses) if training else []
        if training:
            if set(scope.state_mapping) - known:
                raise InputError(f"{where}: {_UNKNOWN}")
            _record(kept, scope, penalties, where)
        return outputs

    return forward


def _record(kept: Sequence[Any], scope: Any, penalties: Sequence[tf.Tensor], where: str) -> None:
    for variable, value in _changed(kept, scope):
        if not variable.value.dtype.is_floating:
            raise InputError(
                f"{where}: {variable.path} is {variable.dtype} and changes in a step, for which "
                "the replicas' values are averaged; make it float32"
            )
        record_statistic(variable.value, tf.cast(value, variable.dtype), momentum=0.0)
    for penalty in penalties:
        record_penalty(tf.cast(penalty, tf.float32))


def _changed(kept: Sequence[Any], scope: Any) -> Iterator[tuple[Any, tf.Tensor]]:
    for variable in kept:
        value = scope.get_current_value(variable)
        if value is not None:
            yield variable, value


def _is_seed(variable: Any) -> bool:
    return bool(variable.name == _SEED)


def _draw(variable: Any, number: int, training: bool) -> tf.Tensor:
    """Return the step's seed for a generator; where nothing is trained, always the same one."""
    seed = tf.bitwise.bitwise_and(next_seed(), _LARGEST_SEED) if training else [number, 0]
    return tf.cast(seed, variable.dtype)


_UNKNOWN = (
    "the model changes a variable in a step that is not one of its own: random numbers need "
    "`seed=` a keras.random.SeedGenerator that is an attribute of the layer, and a state needs "
    "`add_weight`"
)
