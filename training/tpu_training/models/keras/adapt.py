"""Build a user's Keras model for the data, refuse what can't be trained, and adapt it."""

from typing import Any

import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.models.keras.module import KerasModule
from tpu_training.models.keras.refusals import model_problems, shape_problems, two_classes
from tpu_training.models.spec import NUMBERS, DataSpec


def adapt(model: Any, spec: DataSpec, where: str) -> KerasModule:
    """Return the Keras `model` as a module for data of `spec`; call in the strategy's scope.

    Raises:
        InputError: With FILE:LINE, `where` the model is made, and everything that is wrong.
    """
    _refuse(where, model_problems(model))
    dtype = _input_dtype(model, spec)
    outputs = _outputs(model, spec, dtype)
    _refuse(where, shape_problems(model, outputs, spec))
    return KerasModule(
        model,
        where,
        dtype=dtype,
        one_for_two=tuple(tf.nest.flatten(outputs)[0].shape[1:]) == (1,) and two_classes(spec),
        logits=spec.targets != NUMBERS,
    )


def _refuse(where: str, problems: list[str]) -> None:
    if problems:
        raise InputError("; ".join(f"{where}: {problem}" for problem in problems))


def _input_dtype(model: Any, spec: DataSpec) -> str:
    """Return what the model says that it takes; else pixels become numbers, as layers expect."""
    inputs = getattr(model, "inputs", None)
    if inputs:
        return str(tf.as_dtype(inputs[0].dtype).name)
    return "float32" if spec.kind == "image" else spec.dtype


def _outputs(model: Any, spec: DataSpec, dtype: str) -> Any:
    """Return what the model gives for symbols; a model without inputs of its own is built by it."""
    if getattr(model, "inputs", None):
        return model.outputs
    import keras

    return model(keras.Input(spec.shape, dtype=dtype), training=False)
