"""Scalars for TensorBoard, written without it: TensorFlow 2.21 no longer brings it along."""

from collections.abc import Mapping

import tensorflow as tf

_METADATA = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
)


def write_scalars(
    writer: tf.summary.SummaryWriter, step: int, scalars: Mapping[str, float | tf.Tensor]
) -> None:
    """Write each of `scalars` by its name, such as `train/loss`."""
    with writer.as_default(step):
        for name, value in scalars.items():
            tf.summary.write(name, tf.cast(value, tf.float32), metadata=_METADATA)
