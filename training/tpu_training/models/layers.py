"""Basic layers on plain tf.Module, for models of this package and of users.

They are not Keras': TensorFlow 2.12 to 2.15 come with Keras 2, later ones with Keras 3, which names
and wraps variables differently, and a checkpoint of a built-in model must load under both. A user's
Keras 3 model is adapted as a whole; see keras.py.

Weights are float32; arithmetic uses the type of the input.
"""

import tensorflow as tf

_HALF_RANGE = 127.5


class Dense(tf.Module):  # type: ignore[misc]
    """A fully connected layer: x @ kernel + bias."""

    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        """Initialise `inputs` x `outputs` weights as He et al. do (arXiv:1502.01852)."""
        super().__init__()
        self.kernel = tf.Variable(_he_normal((inputs, outputs), inputs, seed), name="kernel")
        self.bias = tf.Variable(tf.zeros(outputs), name="bias")

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        """Map (…, inputs) to (…, outputs)."""
        return tf.nn.bias_add(x @ tf.cast(self.kernel, x.dtype), tf.cast(self.bias, x.dtype))


class Conv2D(tf.Module):  # type: ignore[misc]
    """A convolution that divides height and width by its stride."""

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
    """Scale unsigned bytes to -1 ... 1 on the device, so that only bytes are transferred."""
    return tf.cast(tf.cast(images, tf.float32) / _HALF_RANGE - 1.0, dtype)


def random_normal(shape: tuple[int, ...], deviation: float, seed: int) -> tf.Tensor:
    """Draw first weights, which depend only on the seed and the version of TensorFlow.

    The algorithm is named, because TensorFlow's choice depends on the device that draws
    (https://www.tensorflow.org/api_docs/python/tf/random/Algorithm). Dropout, drawn in each step,
    is left to that choice: on a TPU Philox takes many times the work of the TPU's own generator.
    """
    return tf.random.stateless_normal(
        shape, seed=(seed, len(shape)), stddev=deviation, alg="philox"
    )


def _he_normal(shape: tuple[int, ...], inputs: int, seed: int) -> tf.Tensor:
    return random_normal(shape, (2.0 / inputs) ** 0.5, seed)
