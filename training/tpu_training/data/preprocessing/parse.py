"""Parse serialised tf.train.Example into features and labels."""

import tensorflow as tf

from tpu_training.data.manifest import RAW, TOKENS, Manifest


def parse_examples(serialised: tf.Tensor, manifest: Manifest) -> tuple[tf.Tensor, tf.Tensor]:
    """Parse a batch of tf.train.Example into features and int32 labels.

    Features are unsigned byte images, int32 token ids, or strings if the data set stores encoded
    images. Parsing one example at a time would be several times slower. At run time a label outside
    the manifest's range raises InvalidArgumentError.
    """
    spec = manifest.spec
    features = {"label": tf.io.FixedLenFeature((), tf.int64)}
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
    labels = tf.cast(batch["label"], tf.int32)
    in_range = tf.logical_and(labels >= 0, labels < spec.classes)
    message = f"a label is out of range in the data set {manifest.name}: 0 to {spec.classes - 1}"
    with tf.control_dependencies([tf.debugging.Assert(tf.reduce_all(in_range), [message])]):
        return values, tf.identity(labels)
