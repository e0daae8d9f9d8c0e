"""A vision transformer whose patches become the tokens of `bert`'s layers: for published times."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from tpu_training.models import layers, networks, params as base, registry, spec as data


@dataclass(frozen=True, kw_only=True)
class Params(registry.BertParams):
    """Those of `bert`."""

    patch: int = base.param(16, "size of a square patch", 1, 64)


class Vit(tf.Module):  # type: ignore[misc]
    """Patches, learned positions, layers, the mean of all places, a classifier."""

    def __init__(self, params: Params, image: tuple[int, ...], classes: int, seed: int) -> None:
        """Build for images whose sides are whole patches."""
        super().__init__()
        height, width, channels = image
        self._patch, self._dtype = params.patch, tf.as_dtype(params.precision)
        self._rows, self._columns = height // params.patch, width // params.patch
        size = params.hidden_size
        self.project = layers.Dense(params.patch**2 * channels, size, seed)
        self.positions = layers.Embedding(self._rows * self._columns, size, seed + 1)
        self.layers = [
            networks.EncoderLayer(size, params.heads, params.dropout, seed + 2 + 4 * index)
            for index in range(params.layers)
        ]
        self.head = layers.Dense(size, classes, seed + 2 + 4 * params.layers)

    def __call__(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Map unsigned bytes (batch, height, width, channels) to float32 logits."""
        patch, rows, columns = self._patch, self._rows, self._columns
        x = layers.normalise(images, self._dtype)
        x = tf.reshape(x, (-1, rows, patch, columns, patch, images.shape[-1]))
        x = tf.reshape(tf.transpose(x, (0, 1, 3, 2, 4, 5)), (-1, rows * columns, patch**2 * 3))
        x = self.project(x) + tf.cast(self.positions.table, self._dtype)
        texts = tf.ones((x.shape[0], rows * columns), tf.int32)
        for layer in self.layers:
            x = layer(x, texts, training)
        return self.head(tf.reduce_mean(tf.cast(x, tf.float32), axis=1))


def create_model(params: Params, spec: data.DataSpec, seed: int) -> tf.Module:
    """Build the network."""
    return Vit(params, data.image_shape(spec), data.flat_outputs(spec, "vit"), seed)
