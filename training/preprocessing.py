"""From serialised examples to what the model takes."""

import tensorflow as tf

_HALF_RANGE = 127.5


def parse_examples(
    serialised: tf.Tensor, image_shape: tuple[int, int, int]
) -> tuple[tf.Tensor, tf.Tensor]:
    """Parse a batch of tf.train.Example into unsigned byte images and int32 labels.

    A whole batch at once: parsing one by one is several times slower.
    """
    features = {
        "image": tf.io.FixedLenFeature((), tf.string),
        "label": tf.io.FixedLenFeature((), tf.int64),
    }
    batch = tf.io.parse_example(serialised, features)
    images = tf.reshape(tf.io.decode_raw(batch["image"], tf.uint8), (-1, *image_shape))
    return images, tf.cast(batch["label"], tf.int32)


def normalise(images: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Scale unsigned bytes to -1 ... 1. Runs on the device, so that only bytes travel there."""
    return tf.cast(tf.cast(images, tf.float32) / _HALF_RANGE - 1.0, dtype)
