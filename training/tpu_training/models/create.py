"""Create the model of a definition, in the form that the loop and an export take."""

from typing import Any

import tensorflow as tf

from tpu_training.models.contract import line_of
from tpu_training.models.keras.adapt import adapt
from tpu_training.models.keras.package import creation, is_keras_model
from tpu_training.models.registry import ModelDefinition
from tpu_training.models.spec import DataSpec


def create_model(definition: ModelDefinition, params: Any, spec: DataSpec, seed: int) -> tf.Module:
    """Return a new model; call in the strategy's scope. `params.precision` must be a type.

    Raises:
        InputError: A Keras model that can't be trained on data of `spec`.
    """
    if not definition.own:
        return definition.create_model(params, spec, seed)
    with creation(definition.create_model, seed, params.precision):
        model = definition.create_model(params, spec, seed)
        where = line_of(definition.create_model)
        return adapt(model, spec, where) if is_keras_model(model, where) else model
