"""Preprocessing for training: augmentation, with static shapes."""

import tensorflow as tf

from tpu_training.data.manifest import ENCODED, Manifest
from tpu_training.data.preprocessing import masks, ops
from tpu_training.data.preprocessing.evaluate import (
    Preprocessing,
    evaluation_preprocessing,
    with_masks,
)
from tpu_training.errors import InputError
from tpu_training.models.params import NO_AUGMENTATION, PAD_CROP_FLIP, RESIZED_CROP_FLIP, Params
from tpu_training.models.spec import MASK, DataSpec


def training_preprocessing(manifest: Manifest, params: Params) -> Preprocessing:
    """Add the augmentation of `params` to the preprocessing for evaluation.

    Raises:
        InputError: The data set holds texts.
    """
    spec = manifest.input_spec(params.image_size)
    plain = evaluation_preprocessing(manifest, params)
    if params.augmentation == NO_AUGMENTATION:
        return plain
    if spec.kind != "image":
        raise InputError(
            f"--augmentation={params.augmentation}: is for images, but the data set "
            f"{manifest.name} holds texts; omit it"
        )
    if spec.targets == MASK:
        return _with_masks(manifest, params.augmentation, plain, spec)
    if params.augmentation == RESIZED_CROP_FLIP:
        encoded = manifest.encoding == ENCODED
        return Preprocessing(
            example=lambda image, seed: _resized_crop_flip(image, seed, spec, encoded),
            shape=spec.shape,
        )
    assert params.augmentation == PAD_CROP_FLIP

    def batch(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        sized = plain.batch(images, seeds) if plain.batch else images
        return ops.pad_crop_flip(sized, seeds)

    return Preprocessing(plain.example, batch, plain.shape)


def _with_masks(
    manifest: Manifest, augmentation: str, plain: Preprocessing, spec: DataSpec
) -> Preprocessing:
    """Treat images and masks alike."""
    if augmentation == RESIZED_CROP_FLIP:
        return with_masks(
            manifest,
            example=lambda joined, seed: masks.resized_crop_flip(joined, seed, spec),
            shape=(*spec.shape[:2], spec.shape[2] + 1),
        )

    def batch(joined: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        sized = plain.batch(joined, seeds) if plain.batch else joined
        return ops.pad_crop_flip(sized, seeds)

    return with_masks(manifest, batch=batch)


def _resized_crop_flip(
    image: tf.Tensor, seed: tf.Tensor, spec: DataSpec, encoded: bool
) -> tf.Tensor:
    """Resize a random window of the image and flip it with probability 1/2."""
    height, width, channels = spec.shape
    if encoded:
        window = ops.random_window(ops.image_size(image), seed)
        part = ops.decode_and_crop(image, window, channels)
    else:
        part = ops.crop(image, ops.random_window(tf.shape(image)[:2], seed))
    return tf.ensure_shape(ops.random_flip(ops.resize(part, height, width), seed), spec.shape)
