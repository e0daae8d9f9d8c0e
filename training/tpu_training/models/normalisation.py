"""Normalisation layers, with float32 statistics for inputs of any type."""

import tensorflow as tf

from tpu_training.models.step_context import record_statistic

_MOMENTUM = 0.9
_BATCH_EPSILON = 1e-5
_LAYER_EPSILON = 1e-6


class BatchNorm(tf.Module):  # type: ignore[misc]
    """Batch normalisation (Ioffe and Szegedy, arXiv:1502.03167) of images.

    In training each replica normalises by the statistics of its own part of the batch; evaluation
    uses moving averages of them.
    """

    def __init__(self, channels: int, initial_scale: float = 1.0) -> None:
        """Initialise for `channels`; with `initial_scale` 0 a residual block starts as identity."""
        super().__init__()
        self.scale = tf.Variable(tf.fill((channels,), initial_scale), name="scale")
        self.offset = tf.Variable(tf.zeros(channels), name="offset")
        self.mean = tf.Variable(tf.zeros(channels), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones(channels), trainable=False, name="variance")

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        """Normalise (batch, height, width, channels); in training also update the averages."""
        if not training:
            y, _, _ = tf.compat.v1.nn.fused_batch_norm(
                x,
                self.scale,
                self.offset,
                mean=self.mean,
                variance=self.variance,
                epsilon=_BATCH_EPSILON,
                is_training=False,
            )
            return y
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            x, self.scale, self.offset, epsilon=_BATCH_EPSILON, is_training=True
        )
        record_statistic(self.mean, mean, _MOMENTUM)
        record_statistic(self.variance, variance, _MOMENTUM)
        return y


class LayerNorm(tf.Module):  # type: ignore[misc]
    """Layer normalisation (Ba et al., arXiv:1607.06450) over the last axis."""

    def __init__(self, size: int) -> None:
        """Initialise for inputs (…, `size`)."""
        super().__init__()
        self.scale = tf.Variable(tf.ones(size), name="scale")
        self.offset = tf.Variable(tf.zeros(size), name="offset")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Normalise every vector to mean 0 and variance 1, then scale and shift it."""
        wide = tf.cast(x, tf.float32)
        mean, variance = tf.nn.moments(wide, axes=-1, keepdims=True)
        y = (wide - mean) * tf.math.rsqrt(variance + _LAYER_EPSILON)
        return tf.cast(y * self.scale + self.offset, x.dtype)
