"""Summaries for TensorBoard, written without it: TensorFlow 2.21 no longer brings it along."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import tensorflow as tf


def write_scalars(
    writer: tf.summary.SummaryWriter, step: int, scalars: Mapping[str, float]
) -> None:
    """Write each of `scalars` by its name, such as `train/loss`."""
    for name, value in scalars.items():
        _write(writer, step, "scalars", name, tf.constant(value, tf.float32))


def write_picture(writer: tf.summary.SummaryWriter, step: int, name: str, png: bytes) -> None:
    """Write a PNG picture under `name`."""
    height, width, _ = tf.io.decode_png(png).shape
    # What TensorBoard's plug-in reads: width and height as text, then the pictures.
    value = tf.constant([str(width).encode(), str(height).encode(), png])
    _write(writer, step, "images", name, value)


def write_histogram(
    writer: tf.summary.SummaryWriter, step: int, name: str, buckets: npt.NDArray[np.float64]
) -> None:
    """Write left edge, right edge and count of each bucket, (buckets, 3), under `name`."""
    _write(writer, step, "histograms", name, buckets)


def _write(
    writer: tf.summary.SummaryWriter, step: int, plugin: str, name: str, value: tf.Tensor
) -> None:
    """Write what TensorBoard's `plugin` reads."""
    data = tf.compat.v1.SummaryMetadata.PluginData(plugin_name=plugin)
    with writer.as_default(step):
        tf.summary.write(name, value, metadata=tf.compat.v1.SummaryMetadata(plugin_data=data))
