"""Judge a sweep's losses: where the learning rate is too low, good, and too high.

Uses plain numbers, no TensorFlow. The regions and their use follow Smith (arXiv:1506.01186, section
3.3, and arXiv:1803.09820, section 4); this package chose the thresholds below.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

# A loss this many times the best one has diverged, as in the fastai library.
_DIVERGED = 4.0
# The first steps never end the sweep: one bad batch must not.
_EARLIEST_STOP = 10
# The good region begins once this part of the whole fall is reached.
_FALL_BEGUN = 0.1
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
class Verdict:
    """The boundaries of the regions, as learning rates, and the suggestion.

    Attributes:
        good_from: Where the good region begins; None without one, like the next two.
        good_to: Where the good region ends.
        suggestion: The suggested peak of a schedule.
        diverged: Whether the sweep reached the diverging region.
        reasons: The explanation, in sentences.
        smoothed: The judged curve, smoothed in both directions: a running mean alone lags, towards
            rates that are too high.
    """

    good_from: float | None
    good_to: float | None
    suggestion: float | None
    diverged: bool
    reasons: tuple[str, ...]
    smoothed: tuple[float, ...]


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


def judge(points: Sequence[Point], smoothing: float) -> Verdict:
    """Find the regions of a sweep and suggest the peak of a schedule."""
    finite = [point for point in points if math.isfinite(point.loss)]
    if len(finite) < 3:
        return _nothing(
            f"the loss was {points[-1].loss} at the rate {points[-1].rate:.3g}, almost from the "
            "start: the model or the data is at fault, not the rate",
            [point.smoothed for point in finite],
        )
    losses = _smooth(finite, smoothing)
    lowest = min(range(len(losses)), key=losses.__getitem__)
    fall = losses[0] - losses[lowest]
    if fall < _SMALLEST_FALL * abs(losses[0]):
        return _nothing(
            f"the loss never fell (from {losses[0]:.4g} to {losses[lowest]:.4g} at best): sweep to "
            "a higher rate, or look for an error in the model, the labels or the input",
            losses,
        )
    begun = next(i for i, loss in enumerate(losses) if losses[0] - loss >= _FALL_BEGUN * fall)
    rise = losses[lowest] + _RISE_BEGUN * fall
    risen = next((i for i in range(lowest, len(losses)) if losses[i] >= rise), len(losses) - 1)
    diverged = losses[risen] >= rise or len(finite) < len(points)
    steepest = _steepest(finite, losses, begun, lowest)
    marks = _Marks(begun, steepest, lowest, risen, diverged)
    return Verdict(
        good_from=finite[begun].rate,
        good_to=finite[risen].rate,
        suggestion=finite[steepest].rate,
        diverged=diverged,
        reasons=tuple(_reasons(finite, losses, marks)),
        smoothed=tuple(losses),
    )


@dataclass(frozen=True)
class _Marks:
    """Indices into the curve."""

    begun: int
    steepest: int
    lowest: int
    risen: int
    diverged: bool


def _nothing(reason: str, smoothed: Sequence[float]) -> Verdict:
    return Verdict(None, None, None, False, (reason,), tuple(smoothed))


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


def _steepest(points: Sequence[Point], losses: Sequence[float], begun: int, lowest: int) -> int:
    """Return the index where the loss falls fastest over the logarithm of the rate.

    Measures slopes over a twentieth of the curve on each side, because neighbours differ mostly by
    noise.
    """
    reach = max(1, len(losses) // 20)

    def slope(i: int) -> float:
        before, after = max(i - reach, 0), min(i + reach, len(losses) - 1)
        width = math.log10(points[after].rate / points[before].rate)
        return (losses[after] - losses[before]) / width

    return min(range(begun, lowest + 1), key=slope)


def _reasons(points: Sequence[Point], losses: Sequence[float], marks: _Marks) -> list[str]:
    first, last = points[0].rate, points[-1].rate
    if marks.begun:
        low = f"below {points[marks.begun].rate:.2g} the loss hardly moves from {losses[0]:.3g}"
    else:
        low = f"it falls from the first rate on: --min-rate={first:.2g} is high"
    if marks.diverged:
        high = f"above {points[marks.risen].rate:.2g} it rises: too high"
    else:
        high = f"up to {last:.2g} it did not diverge: the edge lies higher, raise --max-rate"
    return [
        low,
        f"at {points[marks.steepest].rate:.2g} it falls fastest: a good peak for a schedule with "
        "warm-up",
        f"at {points[marks.lowest].rate:.2g} it is lowest ({losses[marks.lowest]:.3g}): the edge",
        high,
    ]
