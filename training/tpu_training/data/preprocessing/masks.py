"""Preprocessing of images together with their masks, which go where the pixels go.

A mask is one more channel of its image meanwhile: its classes from 1, and 0 for no class, so that
what an augmentation adds around the image is not counted.
"""

import tensorflow as tf

from tpu_training.data.preprocessing import ops
from tpu_training.models.spec import DataSpec


def join(images: tf.Tensor, masks: tf.Tensor) -> tf.Tensor:
    """Return images (…, height, width, channels) with their masks (…, height, width) behind."""
    return tf.concat([images, tf.cast(masks + 1, images.dtype)[..., tf.newaxis]], axis=-1)


def part(joined: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the images and the masks that `join` put together."""
    return joined[..., :-1], tf.cast(joined[..., -1], tf.int32) - 1


def resize(joined: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Resize images bilinearly and each pixel of a mask to the nearest one's class."""
    images = ops.resize(joined[..., :-1], height, width)
    method = tf.image.ResizeMethod.NEAREST_NEIGHBOR
    return tf.concat([images, tf.image.resize(joined[..., -1:], (height, width), method)], axis=-1)


def resize_centre(joined: tf.Tensor, spec: DataSpec) -> tf.Tensor:
    """Resize the central square of each image and mask to the size of `spec`."""
    top, left, height, width = tf.unstack(ops.central_window(tf.shape(joined)[1:3]))
    return resize(joined[:, top : top + height, left : left + width], *spec.shape[:2])


def resized_crop_flip(joined: tf.Tensor, seed: tf.Tensor, spec: DataSpec) -> tf.Tensor:
    """Resize a random window of an image and its mask and flip both with probability 1/2."""
    window = ops.random_window(tf.shape(joined)[:2], seed)
    return ops.random_flip(resize(ops.crop(joined, window), *spec.shape[:2]), seed)
