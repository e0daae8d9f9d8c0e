"""Read a sweep's losses: where they fall and rise, and what it means if they do not.

Uses plain numbers, no TensorFlow. The sweep is Smith's (arXiv:1506.01186, section 3.3, and
arXiv:1803.09820, section 4); this package chose the thresholds below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# A loss this many times the best one has diverged, as in the fastai library.
_DIVERGED = 4.0
# The first steps never end the sweep: one bad batch must not.
_EARLIEST_STOP = 10
# A fall smaller than this part of the first loss is noise.
_SMALLEST_FALL = 0.02
# A rise by this part of the whole fall counts as diverging.
_RISE_BEGUN = 0.05


@dataclass(frozen=True)
class Point:
    """One step: its learning rate, its loss, and the running mean of the losses up to it."""

    step: int
    rate: float
    loss: float
    smoothed: float


@dataclass(frozen=True)
class Reading:
    """What a sweep shows.

    Attributes:
        smoothed: The curve, smoothed in both directions: a running mean alone lags, towards rates
            that are too high.
        first: The loss before any step.
        lowest: The rate at which the loss is lowest; None if it never fell.
        diverged: Whether it rose again after that, or became no number.
        problem: What is wrong with the curve, with its meaning; "" for one that can be used.
        warning: What is odd about a curve that can be used.
    """

    smoothed: tuple[float, ...]
    first: float
    lowest: float | None
    diverged: bool
    problem: str = ""
    warning: str = ""


def exponential_rates(lowest: float, highest: float, steps: int) -> list[float]:
    """Return `steps` rates from `lowest` to `highest` in a geometric sequence."""
    factor = math.log(highest / lowest) / (steps - 1)
    return [lowest * math.exp(factor * step) for step in range(steps)]


class Curve:
    """The points of a running sweep."""

    def __init__(self, smoothing: float) -> None:
        """Smooth with a running mean that keeps the part `smoothing`, 0 to below 1, each step."""
        self.points: list[Point] = []
        self._smoothing = smoothing
        self._mean = 0.0
        self._best = math.inf

    def add(self, rate: float, loss: float) -> bool:
        """Add a step; return whether the sweep should continue."""
        step = len(self.points)
        self._mean = self._smoothing * self._mean + (1.0 - self._smoothing) * loss
        # Without the correction the mean would start near 0 (as in Adam, arXiv:1412.6980).
        smoothed = self._mean / (1.0 - self._smoothing ** (step + 1))
        self.points.append(Point(step, rate, loss, smoothed))
        if not math.isfinite(loss):
            return False
        self._best = min(self._best, smoothed)
        return step < _EARLIEST_STOP or smoothed <= _DIVERGED * self._best


def read(points: Sequence[Point], smoothing: float) -> Reading:
    """Read the curve of a sweep."""
    finite = [point for point in points if math.isfinite(point.loss)]
    if len(finite) < 3:
        smoothed = tuple(point.smoothed for point in finite)
        problem = (
            f"the loss was {points[-1].loss} at the rate {points[-1].rate:.3g}, almost from the "
            "start: the model or the data is at fault, not the rate"
        )
        return Reading(smoothed, math.nan, None, False, problem)
    losses = _smooth(finite, smoothing)
    lowest = min(range(len(losses)), key=losses.__getitem__)
    fall = losses[0] - losses[lowest]
    if fall < _SMALLEST_FALL * abs(losses[0]):
        problem = (
            f"the loss never fell (from {losses[0]:.4g} to {losses[lowest]:.4g} at best): no "
            "gradient reaches the weights, or the inputs say nothing about the labels; look for an "
            "error in the model, the labels or the input, and only then sweep to a higher rate"
        )
        return Reading(tuple(losses), losses[0], None, False, problem)
    rise = losses[lowest] + _RISE_BEGUN * fall
    rose = max(losses[lowest:]) >= rise
    ended = len(finite) < len(points)
    warning = ""
    if ended and not rose:
        warning = (
            f"the loss became {points[-1].loss} at {points[-1].rate:.2g} without having risen "
            "before: an operation of the model or an example does that more likely than the rate"
        )
    return Reading(tuple(losses), losses[0], finite[lowest].rate, rose or ended, warning=warning)


def _smooth(points: Sequence[Point], smoothing: float) -> list[float]:
    losses = [point.loss for point in points]
    # One spike at the end must not distort the points before it.
    ceiling = _DIVERGED * min(point.smoothed for point in points)
    clipped = [min(loss, max(ceiling, losses[0])) for loss in losses]
    backwards = _running_means(clipped[::-1], smoothing)[::-1]
    forwards = _running_means(clipped, smoothing)
    return [(a + b) / 2 for a, b in zip(forwards, backwards, strict=True)]


def _running_means(values: Sequence[float], smoothing: float) -> list[float]:
    mean, means = 0.0, []
    for count, value in enumerate(values, start=1):
        mean = smoothing * mean + (1.0 - smoothing) * value
        means.append(mean / (1.0 - smoothing**count))
    return means
