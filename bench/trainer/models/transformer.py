"""A small transformer of Keras' own layers."""

from __future__ import annotations

from typing import Any

from tensorflow import keras
from tensorflow.keras import layers

from tpu_training.models.spec import DataSpec

_WIDTH, _HEADS, _LAYERS = 128, 4, 2


def create_model(spec: DataSpec) -> Any:
    """Return it, compiled."""
    tokens = keras.Input(spec.shape, dtype="int32")
    x = layers.Embedding(spec.vocabulary, _WIDTH)(tokens)
    for _ in range(_LAYERS):
        seen = layers.MultiHeadAttention(_HEADS, _WIDTH // _HEADS, dropout=0.1)(x, x)
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(seen))
        thought = layers.Dense(_WIDTH)(layers.Dense(4 * _WIDTH, activation="gelu")(x))
        x = layers.LayerNormalization()(x + layers.Dropout(0.1)(thought))
    outputs = layers.Dense(spec.classes)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(tokens, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.001), loss, metrics=["accuracy"])
    return model
