"""Normalisation layers, with float32 statistics for inputs of any type."""

import tensorflow as tf

from tpu_training.models.step_context import all_replicas, is_frozen, record_statistic

_MOMENTUM = 0.9
_BATCH_EPSILON = 1e-5
_LAYER_EPSILON = 1e-6


class BatchNorm(tf.Module):  # type: ignore[misc]
    """Batch normalisation (Ioffe and Szegedy, arXiv:1502.03167) of images.

    In training each replica normalises by the statistics of its own part of the batch; evaluation,
    and training with frozen averages, uses moving averages of them. Where `synchronised` is set,
    training normalises by the statistics of all replicas' parts.
    """

    def __init__(self, channels: int, initial_scale: float = 1.0) -> None:
        """Initialise for `channels`; with `initial_scale` 0 a residual block starts as identity."""
        super().__init__()
        self.synchronised = False
        self.scale = tf.Variable(tf.fill((channels,), initial_scale), name="scale")
        self.offset = tf.Variable(tf.zeros(channels), name="offset")
        self.mean = tf.Variable(tf.zeros(channels), trainable=False, name="mean")
        self.variance = tf.Variable(tf.ones(channels), trainable=False, name="variance")

    def __call__(self, x: tf.Tensor, training: bool) -> tf.Tensor:
        """Normalise (batch, height, width, channels); in training also update the averages."""
        if not training or is_frozen(self.mean):
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
        if self.synchronised:
            return self._normalise_together(x)
        y, mean, variance = tf.compat.v1.nn.fused_batch_norm(
            x, self.scale, self.offset, epsilon=_BATCH_EPSILON, is_training=True
        )
        record_statistic(self.mean, mean, _MOMENTUM)
        record_statistic(self.variance, variance, _MOMENTUM)
        return y

    def _normalise_together(self, x: tf.Tensor) -> tf.Tensor:
        wide = tf.cast(x, tf.float32)
        moments = [tf.reduce_mean(values, axis=(0, 1, 2)) for values in (wide, tf.square(wide))]
        mean, square = all_replicas(moments)
        variance = tf.maximum(square - tf.square(mean), 0.0)
        record_statistic(self.mean, mean, _MOMENTUM)
        record_statistic(self.variance, variance, _MOMENTUM)
        y = (wide - mean) * tf.math.rsqrt(variance + _BATCH_EPSILON) * self.scale + self.offset
        return tf.cast(y, x.dtype)


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
