"""RandAugment in the compiled step: each image gets some of fourteen changes, drawn at random.

They are those of Cubuk et al. (arXiv:1909.13719).
"""

import math
from collections.abc import Callable

import tensorflow as tf

from tpu_training.errors import InputError
from tpu_training.loop.equalize import equalize
from tpu_training.models.params import Params
from tpu_training.models.spec import MASK, DataSpec
from tpu_training.models.step_context import next_seed

# Images -> images.
Augment = Callable[[tf.Tensor], tf.Tensor]

MOST = 10.0
# Greatest values of the changes, as in TensorFlow's Model Garden (official/vision/ops/augment.py).
_DEGREES, _SHEAR, _SHIFT, _BLEND = 30.0, 0.3, 0.3, 0.9
_BITS = 4.0
_LUMA = (0.2989, 0.587, 0.114)
_SMOOTH = ((1.0, 1.0, 1.0), (1.0, 5.0, 1.0), (1.0, 1.0, 1.0))
# Changes of the pixels' places come first, then those of their values, and at last none.
_ROTATE, _SHEAR_X, _SHEAR_Y, _SHIFT_X, _SHIFT_Y = range(5)
_PLACES = 5
COUNT = 14


def create_augment(params: Params, spec: DataSpec) -> Augment | None:
    """Return what changes the images of a batch, with the step's seeds; None where nothing does.

    Raises:
        InputError: The examples are no images, or their targets are images, too.
    """
    if not params.randaugment:
        return None
    if spec.kind != "image" or spec.targets == MASK:
        raise InputError(
            f"--randaugment={params.randaugment}: is for images that have labels as a whole, but "
            f"the data set holds {spec.kind}s with targets of the form {spec.targets}; omit it"
        )

    def augment(images: tf.Tensor) -> tf.Tensor:
        changed = tf.cast(images, tf.float32)
        for _ in range(params.randaugment):
            shape = (images.shape[0],)
            kind = tf.random.stateless_uniform(shape, next_seed(), 0, COUNT, tf.int32)
            coin = tf.random.stateless_uniform(shape, next_seed()) < 0.5
            level = params.randaugment_magnitude / MOST
            changed = change(changed, kind, tf.where(coin, level, -level))
        changed = tf.round(changed) if images.dtype.is_integer else changed
        return tf.cast(changed, images.dtype)

    return augment


def change(images: tf.Tensor, kind: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    """Apply to each of `images` (float, 0 to 255) the change `kind` at `level`, from -1 to 1."""
    level = level[:, tf.newaxis, tf.newaxis, tf.newaxis]
    kinds = kind[:, tf.newaxis, tf.newaxis, tf.newaxis]
    result = _moved(images, kind, level[:, 0, 0, 0])
    for number, make in enumerate(_VALUES, start=_PLACES):
        result = tf.where(kinds == number, make(images, level), result)
    return tf.clip_by_value(result, 0.0, 255.0)


def _moved(images: tf.Tensor, kind: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    """Take each pixel from where its image's change puts it; black from outside."""
    height, width = images.shape[1:3]
    one, none = tf.ones_like(level), tf.zeros_like(level)
    angle = tf.where(kind == _ROTATE, level * (_DEGREES * math.pi / 180.0), none)
    shear_x = tf.where(kind == _SHEAR_X, level * _SHEAR, none)
    shear_y = tf.where(kind == _SHEAR_Y, level * _SHEAR, none)
    shift_x = tf.where(kind == _SHIFT_X, level * (_SHIFT * width), none)
    shift_y = tf.where(kind == _SHIFT_Y, level * (_SHIFT * height), none)
    turned = tf.where(kind == _ROTATE, tf.cos(angle), one)
    y, x = tf.meshgrid(
        tf.range(height, dtype=tf.float32) - (height - 1) / 2,
        tf.range(width, dtype=tf.float32) - (width - 1) / 2,
        indexing="ij",
    )

    def place(along: tf.Tensor, across: tf.Tensor, shift: tf.Tensor, size: int) -> tf.Tensor:
        """Return the nearest row or column for each pixel."""
        factors = [part[:, tf.newaxis, tf.newaxis] for part in (turned, across, shift)]
        other = x if along is y else y
        return tf.cast(
            tf.round(factors[0] * along + factors[1] * other + factors[2] + (size - 1) / 2),
            tf.int32,
        )

    rows = place(y, tf.sin(angle) + shear_y, shift_y, height)
    columns = place(x, -tf.sin(angle) + shear_x, shift_x, width)
    inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
    flat = tf.clip_by_value(rows, 0, height - 1) * width
    flat += tf.clip_by_value(columns, 0, width - 1)
    pixels = tf.reshape(images, (-1, height * width, images.shape[3]))
    moved = tf.gather(pixels, tf.reshape(flat, (-1, height * width)), axis=1, batch_dims=1)
    return tf.reshape(moved, tf.shape(images)) * tf.cast(inside, tf.float32)[..., tf.newaxis]


def _autocontrast(images: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
    low = tf.reduce_min(images, axis=(1, 2), keepdims=True)
    high = tf.reduce_max(images, axis=(1, 2), keepdims=True)
    return tf.where(high > low, (images - low) * 255.0 / tf.maximum(high - low, 1.0), images)


def _solarize(images: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    return tf.where(images < 256.0 * (1.0 - tf.abs(level)), images, 255.0 - images)


def _posterize(images: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    step = 2.0 ** tf.round(tf.abs(level) * _BITS)
    return tf.floor(images / step) * step


def _color(images: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    return _blended(_grey(images), images, level)


def _contrast(images: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    mean = tf.reduce_mean(_grey(images), axis=(1, 2, 3), keepdims=True)
    return _blended(mean, images, level)


def _brightness(images: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    return _blended(tf.zeros_like(images), images, level)


def _sharpness(images: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    kernel = tf.constant(_SMOOTH)[:, :, tf.newaxis, tf.newaxis] / 13.0
    kernel = tf.tile(kernel, (1, 1, images.shape[3], 1))
    framed = tf.pad(images, ((0, 0), (1, 1), (1, 1), (0, 0)), "SYMMETRIC")
    smooth = tf.nn.depthwise_conv2d(framed, kernel, (1, 1, 1, 1), "VALID")
    return _blended(smooth, images, level)


def _grey(images: tf.Tensor) -> tf.Tensor:
    if images.shape[3] != len(_LUMA):
        return tf.reduce_mean(images, axis=3, keepdims=True)
    return tf.reduce_sum(images * tf.constant(_LUMA), axis=3, keepdims=True)


def _blended(plain: tf.Tensor, images: tf.Tensor, level: tf.Tensor) -> tf.Tensor:
    return plain + (1.0 + _BLEND * level) * (images - plain)


def _equalize(images: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
    return equalize(images)


_VALUES = (
    _autocontrast,
    _solarize,
    _posterize,
    _color,
    _contrast,
    _brightness,
    _sharpness,
    _equalize,
)
