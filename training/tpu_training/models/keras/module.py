"""A Keras model as the loop takes any model: a tf.Module that maps features to logits."""

from collections.abc import Callable, Container
from typing import Any

import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.models.keras.keras_3 import create_forward, variables
from tpu_training.models.keras.names import place

# What a model may do with probabilities that leaves their order as it is.
_SHAPE = ("Reshape", "Squeeze", "ExpandDims", "Cast", "Identity")
# The operations at a model's end whose input are logits, as Keras' own losses look for them.
_ACTIVATIONS = {"Softmax": "softmax", "Sigmoid": "sigmoid"}


class KerasModule(tf.Module):  # type: ignore[misc]
    """Holds the variables of a Keras model that is built, and calls it.

    Its outputs are the model's in float32, but logits where the model ends in softmax or sigmoid;
    and two of them where the model gives one for two classes: 0, and the logit of the second class.

    Attributes:
        where: FILE:LINE of the function that created the model.
    """

    def __init__(
        self,
        model: Any,
        where: str,
        *,
        dtype: str,
        one_for_two: bool,
        logits: bool,
    ) -> None:
        """Adapt `model`, which is built.

        Args:
            model: The Keras model.
            where: See the class.
            dtype: The type of its features.
            one_for_two: Whether its one output tells one of two classes from the other.
            logits: Whether softmax and sigmoid at its end are left out.
        """
        super().__init__()
        pairs = variables(model)
        place(self, model, pairs)
        trained = {id(variable) for variable in model.trainable_variables}
        self.where = where
        # Held by functions, as TensorFlow would look for variables in them.
        self.keras: Callable[[], Any] = lambda: model
        self.trained_pairs: Callable[[], list[tuple[Any, tf.Variable]]] = lambda: [
            pair for pair in pairs if id(pair[0]) in trained
        ]
        self._forward = create_forward(model, where)
        self._dtype, self._one_for_two, self._logits = dtype, one_for_two, logits
        self._activation = ""
        # What is left out at the end is found in a graph.
        self._compiled = tf.function(self._call, autograph=False)

    @property
    def trainable_variables(self) -> tuple[tf.Variable, ...]:
        """TensorFlow's variables that are trained: a Keras layer may have `trainable = False`."""
        trained = {id(value) for _, value in self.trained_pairs()}
        return tuple(variable for variable in self.variables if id(variable) in trained)

    def freeze(self, frozen: Container[int]) -> None:
        """Let batch normalisation use its averages where their ids are among the `frozen`."""
        for layer in self.keras()._flatten_layers():
            mean = getattr(layer, "moving_mean", None)
            if mean is not None and id(mean.value) in frozen:
                layer.trainable = False

    def __call__(self, features: tf.Tensor, training: bool) -> tf.Tensor:
        """Map features to outputs."""
        call = self._compiled if tf.executing_eagerly() else self._call
        return call(features, training)

    def activated(self, outputs: tf.Tensor) -> tf.Tensor:
        """Turn what `__call__` gave into what the Keras model gave, for Keras' own losses."""
        if self._one_for_two:
            outputs = outputs[..., 1:]
        if not self._activation:
            return outputs
        import keras

        # Keras keeps the logits with the result, from which its losses are exact.
        return getattr(keras.activations, self._activation)(outputs)

    def _call(self, features: tf.Tensor, training: bool) -> tf.Tensor:
        outputs = self._forward(tf.cast(features, self._dtype), training)
        logits = self._without_activation(outputs)
        if self._one_for_two:
            logits = tf.concat([tf.zeros_like(logits), logits], axis=-1)
        return logits

    def _without_activation(self, outputs: tf.Tensor) -> tf.Tensor:
        """Return the model's outputs as float32; remember the function that logits lack."""
        source = outputs.op
        while source.type in _SHAPE:
            source = source.inputs[0].op
        self._activation = _ACTIVATIONS.get(source.type, "") if self._logits else ""
        if not self._activation:
            return tf.cast(outputs, tf.float32)
        logits = source.inputs[0]
        if source.type == "Softmax" and logits.shape[-1] != outputs.shape[-1]:
            raise InputError(
                f"{self.where}: softmax is over {logits.shape[-1]} classes, but the outputs have "
                f"{outputs.shape[-1]} in their last axis; put the change of shape before softmax"
            )
        return tf.ensure_shape(
            tf.reshape(tf.cast(logits, tf.float32), tf.shape(outputs)), outputs.shape
        )
