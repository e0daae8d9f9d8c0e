"""The course of a training, for TensorBoard."""

import tensorflow as tf

from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.progress import Progress
from tpu_training.monitoring.summaries import write_scalars


class Scalars(Callback):
    """Writes the training's curves."""

    def __init__(self, writer: tf.summary.SummaryWriter, progress: Progress) -> None:
        """Write to `writer`, with the rate that `progress` measures; it must be called first."""
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
