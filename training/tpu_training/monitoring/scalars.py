"""Scalars for TensorBoard, written without it: TensorFlow 2.21 no longer brings it along."""

from collections.abc import Mapping

import tensorflow as tf

from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.progress import Progress

_METADATA = tf.compat.v1.SummaryMetadata(
    plugin_data=tf.compat.v1.SummaryMetadata.PluginData(plugin_name="scalars")
)


class Scalars(Callback):
    """Writes the course of the training."""

    def __init__(self, writer: tf.summary.SummaryWriter, progress: Progress) -> None:
        """Write to `writer`, with the rate that `progress` counted just before."""
        self._writer = writer
        self._progress = progress

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Write one point of each curve."""
        scalars = {
            "train/loss": report.loss,
            "train/accuracy": report.accuracy,
            "train/learning_rate": report.learning_rate,
            "train/examples_per_second": self._progress.examples_per_second,
        }
        write_scalars(self._writer, step, scalars)


def write_scalars(
    writer: tf.summary.SummaryWriter, step: int, scalars: Mapping[str, float]
) -> None:
    """Write each of `scalars` by its name, such as `train/loss`."""
    with writer.as_default(step):
        for name, value in scalars.items():
            tf.summary.write(name, tf.constant(value, tf.float32), metadata=_METADATA)
