"""Parse serialised tf.train.Example into features and targets."""

from typing import Any

import tensorflow as tf

from tpu_training.data.manifest import LABEL, NO_CLASS, RAW, TARGETS_FIELD, TOKENS, Manifest
from tpu_training.models.spec import (
    CLASS,
    IGNORED,
    LABELS,
    MASK,
    NOTHING,
    NUMBERS,
    TOKEN_CLASSES,
    DataSpec,
)


def parse_examples(serialised: tf.Tensor, manifest: Manifest) -> tuple[tf.Tensor, tf.Tensor]:
    """Parse a batch of tf.train.Example into features and targets.

    Features are unsigned byte images, int32 token ids, or strings if the data set stores encoded
    images. Targets are as the spec says: int32 classes unless it says otherwise. Parsing one
    example at a time would be several times slower. At run time a class outside the manifest's
    range raises InvalidArgumentError.
    """
    spec = manifest.spec
    features = _target_features(spec)
    if manifest.encoding == TOKENS:
        features["tokens"] = tf.io.FixedLenFeature(spec.shape, tf.int64)
        batch = tf.io.parse_example(serialised, features)
        values = tf.cast(batch["tokens"], tf.int32)
    else:
        features["image"] = tf.io.FixedLenFeature((), tf.string)
        batch = tf.io.parse_example(serialised, features)
        values = batch["image"]
        if manifest.encoding == RAW:
            values = tf.reshape(tf.io.decode_raw(values, tf.uint8), (-1, *spec.shape))
    targets = _targets(batch, spec)
    if spec.targets in (NUMBERS, NOTHING):
        return values, targets
    lowest, highest = _range(spec)
    in_range = tf.logical_and(targets >= lowest, targets <= highest)
    message = f"a label is out of range in the data set {manifest.name}: {lowest} to {highest}"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(in_range), [message])]):
        return values, tf.identity(targets)


def _target_features(spec: DataSpec) -> dict[str, Any]:
    if spec.targets == CLASS:
        return {LABEL: tf.io.FixedLenFeature((), tf.int64)}
    if spec.targets == NOTHING:
        return {}
    if spec.targets == MASK:
        return {TARGETS_FIELD: tf.io.FixedLenFeature((), tf.string)}
    kind = tf.float32 if spec.targets == NUMBERS else tf.int64
    return {TARGETS_FIELD: tf.io.FixedLenFeature(spec.target_shape, kind)}


def _targets(batch: dict[str, tf.Tensor], spec: DataSpec) -> tf.Tensor:
    if spec.targets == NOTHING:
        return tf.zeros(tf.shape(next(iter(batch.values())))[:1], tf.int32)
    if spec.targets == NUMBERS:
        return batch[TARGETS_FIELD]
    if spec.targets == MASK:
        pixels = tf.cast(tf.io.decode_raw(batch[TARGETS_FIELD], tf.uint8), tf.int32)
        classes = tf.where(pixels == NO_CLASS, IGNORED, pixels)
        return tf.reshape(classes, (-1, *spec.target_shape))
    return tf.cast(batch[LABEL if spec.targets == CLASS else TARGETS_FIELD], tf.int32)


def _range(spec: DataSpec) -> tuple[int, int]:
    if spec.targets == LABELS:
        return 0, 1
    return IGNORED if spec.targets in (TOKEN_CLASSES, MASK) else 0, spec.classes - 1
