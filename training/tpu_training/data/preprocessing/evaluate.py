"""Preprocessing for evaluation: deterministic, with static shapes."""

from collections.abc import Callable
from dataclasses import dataclass

import tensorflow as tf

from tpu_training.data.manifest import ENCODED, Manifest
from tpu_training.data.preprocessing import masks, ops
from tpu_training.models.params import Params
from tpu_training.models.spec import MASK, DataSpec

# (features, seeds) -> features
_Step = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclass(frozen=True)
class Preprocessing:
    """Operations on each example and then on the whole batch; None does nothing.

    Seeds are two integers per example. `shape` is the shape of an example, in unsigned bytes, after
    `example`. With `masks`, the targets are another channel of the features, which the operations
    treat together; then `decode` makes features of `stored` before.
    """

    example: _Step | None = None
    batch: _Step | None = None
    shape: tuple[int, ...] = ()
    masks: bool = False
    decode: _Step | None = None
    stored: tuple[int, ...] = ()


def evaluation_preprocessing(manifest: Manifest, params: Params) -> Preprocessing:
    """Keep images of the right size; resize the centre of others."""
    spec = manifest.input_spec(params.image_size)
    if spec.kind != "image":
        return Preprocessing()
    same_size = spec == manifest.spec
    if spec.targets == MASK and not same_size:
        return with_masks(manifest, batch=lambda joined, _: masks.resize_centre(joined, spec))
    if manifest.encoding == ENCODED:
        return Preprocessing(
            example=lambda encoded, _: _decode(encoded, spec, same_size), shape=spec.shape
        )
    return Preprocessing(batch=None if same_size else lambda images, _: _resize(images, spec))


def with_masks(
    manifest: Manifest,
    example: _Step | None = None,
    batch: _Step | None = None,
    shape: tuple[int, ...] = (),
) -> Preprocessing:
    """Return operations on images of one size with their masks behind."""
    stored = manifest.spec

    def decode(encoded: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        return _decode(encoded, stored, same_size=True)

    encoded = manifest.encoding == ENCODED
    return Preprocessing(example, batch, shape, True, decode if encoded else None, stored.shape)


def _decode(encoded: tf.Tensor, spec: DataSpec, same_size: bool) -> tf.Tensor:
    height, width, channels = spec.shape
    if same_size:
        return tf.ensure_shape(ops.decode(encoded, channels), spec.shape)
    window = ops.central_window(ops.image_size(encoded))
    image = ops.resize(ops.decode_and_crop(encoded, window, channels), height, width)
    return tf.ensure_shape(image, spec.shape)


def _resize(images: tf.Tensor, spec: DataSpec) -> tf.Tensor:
    top, left, height, width = tf.unstack(ops.central_window(tf.shape(images)[1:3]))
    centre = images[:, top : top + height, left : left + width]
    return ops.resize(centre, *spec.shape[:2])
