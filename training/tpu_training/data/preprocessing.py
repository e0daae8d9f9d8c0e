"""Stored examples become features and targets on the host: parse, decode, crop, flip, resize.

Random operations are stateless. Their `seed`, two integers per image, makes the same example of the
same step come out the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tpu_training.data import manifest as manifests
from tpu_training.errors import InputError
from tpu_training.models import spec as specs
from tpu_training.models.params import NO_AUGMENTATION, PAD_CROP_FLIP, RESIZED_CROP_FLIP, Params


def parse_examples(serialised: tf.Tensor, manifest: manifests.Manifest) -> tuple[Any, Any]:
    """Parse a batch of tf.train.Example into features and targets.

    Features are unsigned byte images, int32 token ids, strings if the dataset stores encoded
    images, or the spec's arrays. Targets are the spec's, mostly int32 classes; with weights, a
    pair. Parsing one example at a time would be several times slower. At run time a class outside
    the manifest's range, and a number that is not finite, raise InvalidArgumentError.
    """
    spec = manifest.spec
    whole = tf.io.FixedLenFeature((), tf.string)
    name = manifests.FEATURES[manifest.encoding]
    fields = dict.fromkeys([f"{name}/{key}" for key, *_ in spec.inputs] or [name], whole)
    fields |= _target_fields(spec)
    if manifest.weighted:
        fields[manifests.WEIGHT] = tf.io.FixedLenFeature((), tf.float32)
    batch = tf.io.parse_example(serialised, fields)
    if manifest.encoding == manifests.ENCODED:
        values = batch[name]
    elif manifest.encoding == manifests.TOKENS:
        ids = _array(batch[name], spec.shape, manifests.token_dtype(spec.vocabulary))
        values = tf.cast(ids, tf.int32)
    elif spec.inputs:
        values = _arrays(batch, name, spec.inputs)
    elif manifest.encoding == manifests.ARRAY:
        values = _numbers(batch[name], spec.shape, spec.dtype, name)
    else:
        values = _array(batch[name], spec.shape, spec.dtype)
    targets = _checked_targets(batch, manifest)
    return values, (targets, _weights(batch, manifest)) if manifest.weighted else targets


def _array(content: tf.Tensor, shape: Sequence[int], dtype: str) -> tf.Tensor:
    """Return arrays of a type and a shape from the bytes of each."""
    # TensorFlow decodes no uint32.
    plain = "int32" if dtype == "uint32" else dtype
    values = tf.io.decode_raw(content, tf.dtypes.as_dtype(plain))
    # By their number, since bytes of another length than the manifest's would be other examples.
    values = tf.reshape(values, (tf.size(content), *shape))
    return values if plain == dtype else tf.bitcast(values, dtype)


def _arrays(
    batch: dict[str, tf.Tensor], field: str, forms: Sequence[tuple[str, tuple[int, ...], str]]
) -> dict[str, tf.Tensor]:
    paths = {name: f"{field}/{name}" for name, *_ in forms}
    return {
        name: _numbers(batch[paths[name]], shape, dtype, paths[name])
        for name, shape, dtype in forms
    }


def _numbers(content: tf.Tensor, shape: Sequence[int], dtype: str, path: str) -> tf.Tensor:
    """Return arrays of which each number is finite; `path` is for messages."""
    return only_finite(_array(content, shape, dtype), path)


def only_finite(values: tf.Tensor, path: str) -> tf.Tensor:
    """Return `values`; fail at run time where one of them is no number, with their `path`."""
    if not values.dtype.is_floating:
        return values
    numbers = tf.reduce_all(tf.math.is_finite(tf.cast(values, tf.float32)))
    with tf.control_dependencies([tf.debugging.Assert(numbers, [f"NaN or infinity in {path}"])]):
        return tf.identity(values)


def _weights(batch: dict[str, tf.Tensor], manifest: manifests.Manifest) -> tf.Tensor:
    weights = batch[manifests.WEIGHT]
    in_range = tf.reduce_all(tf.logical_and(weights >= 0, weights <= weights.dtype.max))
    message = f"a weight is out of range in the dataset {manifest.name}: a number from 0"
    with tf.control_dependencies([tf.debugging.Assert(in_range, [message])]):
        return tf.identity(weights)


def _checked_targets(batch: dict[str, tf.Tensor], manifest: manifests.Manifest) -> Any:
    spec = manifest.spec
    targets = _targets(batch, spec)
    if spec.targets in (specs.NUMBERS, specs.NOTHING, specs.SEVERAL):
        return targets
    lowest, highest = _range(spec)
    in_range = tf.logical_and(targets >= lowest, targets <= highest)
    message = f"a label is out of range in the dataset {manifest.name}: {lowest} to {highest}"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(in_range), [message])]):
        return tf.identity(targets)


def _target_fields(spec: specs.DataSpec) -> dict[str, Any]:
    """Return what a record holds for its targets, in the form that tf.io parses."""
    if spec.targets == specs.CLASS:
        return {manifests.LABEL: tf.io.FixedLenFeature((), tf.int64)}
    if spec.targets == specs.NOTHING:
        return {}
    if spec.targets == specs.MASK:
        return {manifests.TARGETS_FIELD: tf.io.FixedLenFeature((), tf.string)}
    if spec.several:
        names = (f"{manifests.TARGETS_FIELD}/{key}" for key, *_ in spec.several)
        return dict.fromkeys(names, tf.io.FixedLenFeature((), tf.string))
    kind = tf.float32 if spec.targets == specs.NUMBERS else tf.int64
    return {manifests.TARGETS_FIELD: tf.io.FixedLenFeature(spec.target_shape, kind)}


def _targets(batch: dict[str, tf.Tensor], spec: specs.DataSpec) -> Any:
    """Return the targets of a parsed batch; a pixel without a class becomes IGNORED."""
    if spec.several:
        return _arrays(batch, manifests.TARGETS_FIELD, spec.several)
    if spec.targets == specs.NOTHING:
        return tf.zeros(tf.shape(next(iter(batch.values())))[:1], tf.int32)
    if spec.targets == specs.NUMBERS:
        return only_finite(batch[manifests.TARGETS_FIELD], manifests.TARGETS_FIELD)
    if spec.targets == specs.MASK:
        bytes_of_masks = batch[manifests.TARGETS_FIELD]
        pixels = tf.cast(_array(bytes_of_masks, spec.target_shape, "uint8"), tf.int32)
        return tf.where(pixels == manifests.NO_CLASS, specs.IGNORED, pixels)
    name = manifests.LABEL if spec.targets == specs.CLASS else manifests.TARGETS_FIELD
    return tf.cast(batch[name], tf.int32)


def _range(spec: specs.DataSpec) -> tuple[int, int]:
    """Return the lowest and the highest target that a loss can take."""
    if spec.targets == specs.LABELS:
        return 0, 1
    least = specs.IGNORED if spec.targets in (specs.TOKEN_CLASSES, specs.MASK) else 0
    return least, spec.classes - 1


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


def evaluation_preprocessing(manifest: manifests.Manifest, params: Params) -> Preprocessing:
    """Keep images of the right size; resize the centre of others."""
    spec = manifest.input_spec(params.image_size)
    if spec.kind != "image":
        return Preprocessing()
    same_size = spec == manifest.spec
    if spec.targets == specs.MASK and not same_size:
        return with_masks(manifest, batch=lambda joined, _: _resize(joined, spec, masks=True))
    if manifest.encoding == manifests.ENCODED:
        return Preprocessing(
            example=lambda encoded, _: _decode(encoded, spec, same_size), shape=spec.shape
        )
    return Preprocessing(batch=None if same_size else lambda images, _: _resize(images, spec))


def with_masks(
    manifest: manifests.Manifest,
    example: _Step | None = None,
    batch: _Step | None = None,
    shape: tuple[int, ...] = (),
) -> Preprocessing:
    """Return operations on images of one size with their masks behind."""
    stored = manifest.spec

    def decode(encoded: tf.Tensor, _: tf.Tensor) -> tf.Tensor:
        return _decode(encoded, stored, same_size=True)

    encoded = manifest.encoding == manifests.ENCODED
    return Preprocessing(example, batch, shape, True, decode if encoded else None, stored.shape)


def _decode(encoded: tf.Tensor, spec: specs.DataSpec, same_size: bool) -> tf.Tensor:
    """Decode an image, or only the centre of it where it has to be resized."""
    height, width, channels = spec.shape
    if same_size:
        return tf.ensure_shape(decode(encoded, channels), spec.shape)
    window = central_window(image_size(encoded))
    image = resize(decode_and_crop(encoded, window, channels), height, width)
    return tf.ensure_shape(image, spec.shape)


def _resize(images: tf.Tensor, spec: specs.DataSpec, masks: bool = False) -> tf.Tensor:
    """Resize the centre of images of one size, all in one operation."""
    top, left, height, width = tf.unstack(central_window(tf.shape(images)[1:3]))
    centre = images[:, top : top + height, left : left + width]
    return resize(centre, spec.shape[0], spec.shape[1], masks)


def training_preprocessing(manifest: manifests.Manifest, params: Params) -> Preprocessing:
    """Add the augmentation of `params` to the preprocessing for evaluation.

    Raises:
        InputError: The dataset holds texts.
    """
    spec = manifest.input_spec(params.image_size)
    plain = evaluation_preprocessing(manifest, params)
    if params.augmentation == NO_AUGMENTATION:
        return plain
    if spec.kind != "image":
        raise InputError(
            f"--augmentation={params.augmentation}: is for images, but the dataset "
            f"{manifest.name} has {spec.kind}s; omit it"
        )
    masks = spec.targets == specs.MASK
    if params.augmentation == RESIZED_CROP_FLIP:
        encoded = manifest.encoding == manifests.ENCODED and not masks

        def example(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
            return _resized_crop_flip(image, seed, spec, encoded, masks)

        if masks:
            shape = (*spec.shape[:2], spec.shape[2] + 1)
            return with_masks(manifest, example=example, shape=shape)
        return Preprocessing(example=example, shape=spec.shape)
    assert params.augmentation == PAD_CROP_FLIP

    def batch(images: tf.Tensor, seeds: tf.Tensor) -> tf.Tensor:
        sized = plain.batch(images, seeds) if plain.batch else images
        return pad_crop_flip(sized, seeds)

    if masks:
        return with_masks(manifest, batch=batch)
    return Preprocessing(plain.example, batch, plain.shape)


def _resized_crop_flip(
    image: tf.Tensor, seed: tf.Tensor, spec: specs.DataSpec, encoded: bool, masks: bool
) -> tf.Tensor:
    """Resize a random window of the image and flip it with probability 1/2."""
    height, width, channels = spec.shape
    if encoded:
        window = random_window(image_size(image), seed)
        part = decode_and_crop(image, window, channels)
    else:
        part = crop(image, random_window(tf.shape(image)[:2], seed))
    flipped = tf.image.stateless_random_flip_left_right(resize(part, height, width, masks), seed)
    return tf.ensure_shape(flipped, (height, width, channels + masks))


# Until the end a mask is one more channel of its image: its classes from 1, and 0 for no class, so
# that what an augmentation adds around the image is not counted.


def join_masks(images: tf.Tensor, masks: tf.Tensor) -> tf.Tensor:
    """Return images (…, height, width, channels) with their masks (…, height, width) behind."""
    return tf.concat([images, tf.cast(masks + 1, images.dtype)[..., tf.newaxis]], axis=-1)


def split_masks(joined: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the images and the masks that `join` put together."""
    return joined[..., :-1], tf.cast(joined[..., -1], tf.int32) - 1


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


def resize(images: tf.Tensor, height: int, width: int, masks: bool = False) -> tf.Tensor:
    """Resize unsigned byte images bilinearly and round.

    With `masks` behind them, each pixel of a mask takes the nearest one's class.
    """
    if masks:
        sized = resize(images[..., :-1], height, width)
        nearest = tf.image.ResizeMethod.NEAREST_NEIGHBOR
        classes = tf.image.resize(images[..., -1:], (height, width), nearest)
        return tf.concat([sized, classes], axis=-1)
    return tf.cast(tf.image.resize(images, (height, width)) + 0.5, tf.uint8)


def crop(image: tf.Tensor, window: tf.Tensor) -> tf.Tensor:
    """Crop an image to `window` (top, left, height, width)."""
    begin = tf.concat([window[:2], [0]], axis=0)
    return tf.slice(image, begin, tf.concat([window[2:], [-1]], axis=0))


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
