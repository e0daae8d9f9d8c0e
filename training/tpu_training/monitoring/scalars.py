"""The course of a training, for TensorBoard."""

from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.progress import Progress
from tpu_training.monitoring.summaries import Summaries


class Scalars(Callback):
    """Writes the training's curves."""

    def __init__(self, summaries: Summaries, progress: Progress) -> None:
        """Write to `summaries`, with the rate that `progress` measures; it must be called first."""
        self._summaries = summaries
        self._progress = progress

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Write one point of each curve."""
        scalars = {
            "train/loss": report.loss,
            **{f"train/{name}": value for name, value in report.metrics.items()},
            "train/gradient_norm": report.gradient_norm,
            "train/learning_rate": report.learning_rate,
            "train/examples_per_second": self._progress.examples_per_second,
        }
        self._summaries.scalars(step, scalars)
