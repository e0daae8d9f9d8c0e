"""A small convolutional network for images of digits."""

import tensorflow as tf

from tpu_training.models.layers import Conv2D, Dense, normalise

_CHANNELS = (16, 32)
_HIDDEN = 128


class MnistCnn(tf.Module):  # type: ignore[misc]
    """Two convolutions, each followed by max-pooling, and two dense layers.

    Pooling precedes ReLU: the result is the same for a quarter of the work.
    """

    def __init__(
        self, image_shape: tuple[int, int, int], classes: int, precision: str, seed: int
    ) -> None:
        """Build for images of (height, width, channels); arithmetic uses `precision`."""
        super().__init__()
        self._dtype = tf.as_dtype(precision)
        height, width, channels = image_shape
        first, second = _CHANNELS
        self.conv_1 = Conv2D(3, channels, first, seed)
        self.conv_2 = Conv2D(3, first, second, seed + 1)
        self.flat = _quarter(height) * _quarter(width) * second
        self.dense_1 = Dense(self.flat, _HIDDEN, seed + 2)
        self.dense_2 = Dense(_HIDDEN, classes, seed + 3)

    def __call__(self, images: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Map unsigned byte images (batch, height, width, channels) to float32 logits."""
        x = normalise(images, self._dtype)
        x = tf.nn.relu(_halve(self.conv_1(x)))
        x = tf.nn.relu(_halve(self.conv_2(x)))
        x = tf.nn.relu(self.dense_1(tf.reshape(x, (-1, self.flat))))
        return tf.cast(self.dense_2(x), tf.float32)


def _halve(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.max_pool2d(x, ksize=2, strides=2, padding="SAME")


def _quarter(size: int) -> int:
    """Halve `size` twice, rounding up."""
    return -(-size // 4)
