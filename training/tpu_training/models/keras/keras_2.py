"""Call a model of tf_keras, or of the Keras 2 in TensorFlow up to 2.15, within a step.

Its batch normalisation assigns to its averages and its dropout has a state of its own. Both would
differ after a resumption, and an assignment in the loop over a batch's parts fails under
MirroredStrategy. So the layers of this model get other functions to update and to draw with.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx

from tpu_training.models.step_context import (
    in_step,
    next_seed,
    record_penalty,
    record_statistic,
)

_STATELESS = "stateless"

Pair = tuple[Any, tf.Variable]


def variables(model: Any) -> list[Pair]:
    """Return the variables, in pairs as keras_3.py gives them."""
    return [(variable, variable) for variable in model.variables]


def create_forward(
    model: Any, package: ModuleType, where: str
) -> Callable[[tf.Tensor, bool], tf.Tensor]:
    """Return a function that maps features and `training` to the outputs of `model`."""
    for layer in model._flatten_layers():
        if hasattr(layer, "_assign_moving_average"):
            layer._assign_moving_average = _follow
            layer._assign_new_value = _replace
        if hasattr(layer, "_random_generator"):
            _draw_from_step(layer._random_generator)

    def forward(features: tf.Tensor, training: bool) -> tf.Tensor:
        # Keras compiles the control flow of a user's layers if its caller's is compiled.
        with ag_ctx.ControlStatusCtx(status=ag_ctx.Status.ENABLED):
            outputs = model(features, training=training)
        for penalty in model.losses if training else ():
            record_penalty(tf.cast(penalty, tf.float32))
        return outputs

    return forward


def _follow(variable: tf.Variable, value: tf.Tensor, momentum: Any, _: object) -> tf.Tensor:
    if in_step():
        # A constant of the loop over a batch's parts, in which the layer is called, ends with it.
        known = tf.get_static_value(momentum) if tf.is_tensor(momentum) else momentum
        record_statistic(variable, tf.cast(value, variable.dtype), float(known))
    return value


def _replace(variable: tf.Variable, value: tf.Tensor) -> tf.Tensor:
    return _follow(variable, value, 0.0, None)


def _draw_from_step(generator: Any) -> None:
    generator._rng_type, generator._built = _STATELESS, True
    generator.make_seed_for_stateless_op = _seed


def _seed() -> tf.Tensor:
    """Return the step's next seed; where nothing is trained, always the same one."""
    return next_seed() if in_step() else tf.zeros(2, tf.int32)
