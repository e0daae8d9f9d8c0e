"""MobileNetV2 of keras.applications."""

from __future__ import annotations

from typing import Any

from tensorflow import keras

from tpu_training.models.spec import DataSpec


def create_model(spec: DataSpec) -> Any:
    """Return it without weights, compiled."""
    inputs = keras.Input(spec.shape)
    pixels = keras.layers.Rescaling(1 / 127.5, -1)(inputs)
    network = keras.applications.MobileNetV2(
        input_tensor=pixels, input_shape=spec.shape, weights=None, classes=spec.classes
    )
    model = keras.Model(inputs, network.output)
    model.compile(
        keras.optimizers.Adam(0.001), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    return model
