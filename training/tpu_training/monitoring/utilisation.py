"""How fast the steps compute: operations a second, and their share of the TPU's peak (MFU)."""

import logging

from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.monitoring.summaries import Summaries

logger = logging.getLogger(__name__)


class Utilisation(Callback):
    """Measures the model's operations a second, without the first loop, which compiles.

    The share of the peak is the model FLOPs utilisation of PaLM (arXiv:2204.02311, appendix B); it
    is known where the peak is.
    """

    def __init__(self, summaries: Summaries, peak: float) -> None:
        """Write to `summaries`; `peak` is that of all replicas a second, 0 where it is unknown."""
        self._summaries = summaries
        self._peak = peak
        self._loops = 0
        self._operations = self._seconds = self._highest_norm = self._last_norm = 0.0

    @property
    def figures(self) -> dict[str, float]:
        """The figures of the whole training, by name; none after a single loop."""
        return self._figures(self._operations / self._seconds) if self._seconds else {}

    def between_loops(self, step: int, report: LoopReport) -> None:
        """Write the loop's figures."""
        self._loops += 1
        self._last_norm = report.gradient_norm
        self._highest_norm = max(self._highest_norm, report.gradient_norm)
        if self._loops == 1 or not report.flops:
            return
        operations = report.flops * report.count
        self._operations += operations
        self._seconds += report.seconds
        figures = self._figures(operations / report.seconds)
        self._summaries.scalars(step, {f"train/{name}": each for name, each in figures.items()})

    def close(self) -> None:
        """Log the figures."""
        if self._loops:
            logger.info(
                "gradient: norm %.3g in the last loop, at most %.3g",
                self._last_norm,
                self._highest_norm,
            )
        if figures := self.figures:
            share = f", {figures['mfu']:.1%} of the peak (MFU)" if "mfu" in figures else ""
            logger.info("speed: %.3g FLOP/s%s", figures["flops_per_second"], share)

    def _figures(self, rate: float) -> dict[str, float]:
        return {"flops_per_second": rate} | ({"mfu": rate / self._peak} if self._peak else {})
