"""What of a Keras model can't be trained here, and what would be right instead."""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tpu_training.models.spec import CLASS, DataSpec

# Methods of keras.Model that `fit` calls and this package's loop does not.
_OF_FIT = ("train_step", "compute_loss")


def model_problems(model: Any) -> list[str]:
    """Return what is wrong with `model` before it is built."""
    return [*_backend_problems(), *_method_problems(model), *_type_problems(model)]


def shape_problems(model: Any, outputs: Any, spec: DataSpec) -> list[str]:
    """Return where the model's inputs and what it gives, `outputs`, do not fit the data."""
    return [*_input_problems(model, spec), *_output_problems(outputs, spec)]


def two_classes(spec: DataSpec) -> bool:
    """Return whether one number says which class an example is of."""
    return spec.targets == CLASS and spec.output_shape == (2,)


def _backend_problems() -> Iterator[str]:
    import keras

    backend = keras.backend.backend()
    if backend != "tensorflow":
        yield f"Keras computes with {backend}; set KERAS_BACKEND=tensorflow"


def _method_problems(model: Any) -> Iterator[str]:
    import keras

    for name in _OF_FIT:
        if getattr(type(model), name, None) is not getattr(keras.Model, name, None):
            yield (
                f"{type(model).__name__} has a {name} of its own, which only `fit` calls; add to "
                "the loss with add_loss in `call`, or define `losses` in the file"
            )
    if getattr(model._compile_loss, "_user_loss_weights", None) is not None:
        yield "loss_weights: there is one loss; leave them out (`metrics` comes after them)"
    if getattr(model, "run_eagerly", False):
        yield "run_eagerly=True: the step is always compiled; leave it out"


def _type_problems(model: Any) -> Iterator[str]:
    for layer in model._flatten_layers():
        if getattr(layer, "compute_dtype", None) == "float16":
            yield (
                f"the layer {layer.name} computes in float16, whose losses must be scaled and "
                "which TPUs do not have; use mixed_bfloat16 or --precision=bfloat16"
            )
            return


def _input_problems(model: Any, spec: DataSpec) -> Iterator[str]:
    inputs = getattr(model, "inputs", None) or []
    if len(inputs) > 1:
        names = ", ".join(name.name for name in inputs)
        yield f"the model has {len(inputs)} inputs ({names}); the data set has one"
    elif inputs:
        batch, *shape = inputs[0].shape
        if batch is not None:
            yield (
                f"the model takes batches of {batch} only; leave the size of the batch out of its "
                "Input"
            )
        if not tf.TensorShape(shape).is_compatible_with(spec.shape):
            yield (
                f"the model takes inputs of the shape {tuple(shape)}, the data set has "
                f"{spec.kind}s of the shape {spec.shape}; use spec.shape"
            )


def _output_problems(outputs: Any, spec: DataSpec) -> Iterator[str]:
    found = tf.nest.flatten(outputs)
    if len(found) > 1:
        yield f"the model has {len(found)} outputs; a task has one"
        return
    shape, expected = tuple(found[0].shape[1:]), spec.output_shape
    if shape == (1,) and two_classes(spec):
        return
    if not tf.TensorShape(shape).is_compatible_with(expected):
        what = "as the task wants it; use spec.output_shape"
        if expected == (spec.classes,) and spec.targets == CLASS:
            what = f"a number for each of the data set's {spec.classes} classes; use spec.classes"
        yield (
            f"the model gives outputs of the shape {shape} for an example, expected {expected}: "
            f"{what}"
        )
