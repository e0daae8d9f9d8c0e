"""Operations on images: decode, crop, flip, resize.

Random operations are stateless. Their `seed`, two integers per image, makes the same example of the
same step come out the same.
"""

import tensorflow as tf

# Inception's crop (Szegedy et al., arXiv:1409.4842, section 6), used by public ResNet-50 recipes.
_AREA = (0.08, 1.0)
_ASPECT_RATIO = (3 / 4, 4 / 3)
_ATTEMPTS = 10
# Evaluation uses the centre, 224 of 256, as in He et al. (arXiv:1512.03385, section 3.4).
_CENTRE = 224 / 256
_PADDING = 4


def decode(encoded: tf.Tensor, channels: int) -> tf.Tensor:
    """Decode a JPEG or PNG image into unsigned bytes (height, width, channels)."""
    return tf.io.decode_jpeg(encoded, channels=channels, dct_method="INTEGER_FAST")


def decode_and_crop(encoded: tf.Tensor, window: tf.Tensor, channels: int) -> tf.Tensor:
    """Decode only `window` (top, left, height, width) of a JPEG; crop it from a decoded PNG."""

    def jpeg() -> tf.Tensor:
        return tf.io.decode_and_crop_jpeg(
            encoded, window, channels=channels, dct_method="INTEGER_FAST"
        )

    return tf.cond(tf.io.is_jpeg(encoded), jpeg, lambda: crop(decode(encoded, channels), window))


def image_size(encoded: tf.Tensor) -> tf.Tensor:
    """Return height and width; a JPEG's come from its header alone."""
    return tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.extract_jpeg_shape(encoded)[:2],
        lambda: tf.shape(decode(encoded, 1))[:2],
    )


def random_window(size: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Choose a random window (top, left, height, width) of an image of `size` (height, width)."""
    begin, window, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.concat([size, [1]], axis=0),
        bounding_boxes=tf.zeros((1, 0, 4)),
        seed=seed,
        min_object_covered=0.0,
        aspect_ratio_range=_ASPECT_RATIO,
        area_range=_AREA,
        max_attempts=_ATTEMPTS,
        use_image_if_no_bounding_boxes=True,
    )
    return tf.concat([begin[:2], window[:2]], axis=0)


def central_window(size: tf.Tensor) -> tf.Tensor:
    """Return the central square (top, left, height, width) of an image of `size`."""
    shorter = tf.cast(tf.reduce_min(size), tf.float32)
    side = tf.maximum(tf.cast(tf.round(shorter * _CENTRE), tf.int32), 1)
    return tf.concat([(size - side) // 2, [side, side]], axis=0)


def resize(images: tf.Tensor, height: int, width: int) -> tf.Tensor:
    """Resize unsigned byte images bilinearly and round."""
    return tf.cast(tf.image.resize(images, (height, width)) + 0.5, tf.uint8)


def crop(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Crop an image to `window` (top, left, height, width)."""
    begin = tf.concat([window[:2], [0]], axis=0)
    return tf.slice(image, begin, tf.concat([window[2:], [-1]], axis=0))


def random_flip(images: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """Flip an image horizontally with probability 1/2."""
    return tf.image.stateless_random_flip_left_right(images, seed)


def pad_crop_flip(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
    """Pad each image of a batch by 4 black pixels, crop it at random and flip half of them.

    As Lee et al. (arXiv:1409.5185) and He et al. (section 4.2) do for CIFAR-10. The batch is
    (count, height, width, channels), the seeds are (count, 2). A few operations treat all images.
    """
    height, width = images.shape[1:3]
    padded = tf.pad(images, ((0, 0), (_PADDING, _PADDING), (_PADDING, _PADDING), (0, 0)))
    shifts = 2 * _PADDING + 1
    top, left = tf.math.floormod(seeds[:, 0], shifts), tf.math.floormod(seeds[:, 1], shifts)
    mirrored = tf.math.floormod(seeds[:, 0] // shifts, 2) == 1
    rows = top[:, None] + tf.range(height)
    columns = tf.range(width)
    columns = left[:, None] + tf.where(mirrored[:, None], columns[::-1], columns)
    return tf.gather(tf.gather(padded, rows, axis=1, batch_dims=1), columns, axis=2, batch_dims=1)
