"""Spread the levels of an image evenly, with matrix products where others count and look up.

A level is two digits of base 16. The histogram of an image is then the product of the matrices
that say which pixel has which digit, and what becomes of a pixel is another one. So a TPU, which is
slow at scattering and gathering single pixels, compares each pixel 32 times and not 256 times.
"""

import tensorflow as tf

_BASE = 16
_LEVELS = _BASE * _BASE


def equalize(images: tf.Tensor) -> tf.Tensor:
    """Return float `images` (batch, height, width, channels), 0 to 255, as ImageOps.equalize does.

    Levels are rounded to whole numbers before.
    """
    shape = tf.shape(images)
    channels = [
        _equalized(tf.reshape(images[..., channel], (shape[0], -1)))
        for channel in range(images.shape[3])
    ]
    return tf.reshape(tf.stack(channels, axis=2), shape)


def _equalized(values: tf.Tensor) -> tf.Tensor:
    """Equalise the levels (batch, pixels) of one channel."""
    levels = tf.cast(tf.round(values), tf.int32)
    high = tf.one_hot(levels // _BASE, _BASE)
    low = tf.one_hot(levels % _BASE, _BASE)
    counts = tf.reshape(tf.linalg.matmul(high, low, transpose_a=True), (-1, _LEVELS))
    table = tf.reshape(_table(counts), (-1, _BASE, _BASE))
    return tf.reduce_sum(tf.linalg.matmul(high, table) * low, axis=2)


def _table(counts: tf.Tensor) -> tf.Tensor:
    """Return the new level of each of 256 levels, for images with these numbers of pixels."""
    numbers = tf.range(_LEVELS, dtype=tf.float32)
    last = tf.reduce_max(tf.where(counts > 0, numbers, 0.0), axis=1, keepdims=True)
    of_last = tf.reduce_sum(tf.where(numbers == last, counts, 0.0), axis=1, keepdims=True)
    step = _divided(tf.reduce_sum(counts, axis=1, keepdims=True) - of_last, _LEVELS - 1.0)
    below = tf.cumsum(counts, axis=1, exclusive=True) + tf.floor(step / 2.0)
    spread = tf.clip_by_value(_divided(below, tf.maximum(step, 1.0)), 0.0, _LEVELS - 1.0)
    return tf.where(step > 0, spread, numbers)


def _divided(numbers: tf.Tensor, by: tf.Tensor | float) -> tf.Tensor:
    """Divide whole numbers and round down, also where the quotient is a little too small."""
    return tf.floor((numbers + 0.5) / by)
