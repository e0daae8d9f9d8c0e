"""The few layers that the models are made of, on plain tf.Module.

Not Keras: Keras 2 (TensorFlow 2.12) and Keras 3 (2.16 and later) name and wrap variables in
different ways, and the same checkpoint has to load under both. A Keras model can be trained all
the same: the training loop needs a callable and its `trainable_variables`.

Weights are float32; arithmetic is done in the type of the input.
"""

import tensorflow as tf

_HALF_RANGE = 127.5


class Dense(tf.Module):  # type: ignore[misc]
    """A fully connected layer: x @ kernel + bias."""

    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        """Initialise `inputs` x `outputs` weights after He et al. (arXiv:1502.01852)."""
        super().__init__()
        self.kernel = tf.Variable(_he_normal((inputs, outputs), inputs, seed), name="kernel")
        self.bias = tf.Variable(tf.zeros(outputs), name="bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Map (…, inputs) to (…, outputs)."""
        return tf.nn.bias_add(x @ tf.cast(self.kernel, x.dtype), tf.cast(self.bias, x.dtype))


class Conv2D(tf.Module):  # type: ignore[misc]
    """A convolution that keeps height and width, or divides them by its stride."""

    def __init__(
        self, size: int, inputs: int, outputs: int, seed: int, stride: int = 1, bias: bool = True
    ) -> None:
        """Initialise a `size` x `size` kernel from `inputs` to `outputs` channels."""
        super().__init__()
        self.stride = stride
        shape = (size, size, inputs, outputs)
        self.kernel = tf.Variable(_he_normal(shape, size * size * inputs, seed), name="kernel")
        self.bias = tf.Variable(tf.zeros(outputs), name="bias") if bias else None

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Map (batch, height, width, inputs) to (batch, height, width, outputs)."""
        x = tf.nn.conv2d(x, tf.cast(self.kernel, x.dtype), strides=self.stride, padding="SAME")
        return x if self.bias is None else tf.nn.bias_add(x, tf.cast(self.bias, x.dtype))


def normalise(images: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Scale unsigned bytes to -1 ... 1. Runs on the device, so that only bytes travel there."""
    return tf.cast(tf.cast(images, tf.float32) / _HALF_RANGE - 1.0, dtype)


def _he_normal(shape: tuple[int, ...], inputs: int, seed: int) -> tf.Tensor:
    """The same numbers for the same seed on every device and in every TensorFlow version."""
    deviation = (2.0 / inputs) ** 0.5
    return tf.random.stateless_normal(shape, seed=(seed, len(shape)), stddev=deviation)
