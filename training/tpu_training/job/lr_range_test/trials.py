"""Short trainings around a rate: which rates train well, and which of them best.

A sweep spends a step on each rate, so that it shows where the loss falls and where it diverges, but
not which rate trains well in a schedule. Uses plain numbers, no TensorFlow.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

# Half a decade.
_FACTOR = 10**0.5
_MOST_EACH_WAY = 6
# A training is good if its loss falls by this part of the best one's fall.
_GOOD = 0.9
# And about as good as the best by this part.
_EQUAL = 0.98
# The loss of guessing, times this: less than that is no sign of learning.
_LEARNT = 0.96

# rate -> the loss at the end of a short training; not finite if it diverged
Train = Callable[[float], float]


@dataclass(frozen=True)
class Trials:
    """The final loss of short trainings by their rates, and the loss before any step.

    `repeated` are the losses of second trainings, with other batches.
    """

    first: float
    losses: dict[float, float]
    repeated: dict[float, float] = field(default_factory=dict)

    @property
    def best(self) -> float:
        """The rate of the lowest loss, the lower one of equals."""
        return min(sorted(self.losses), key=lambda rate: _finite(self.losses[rate]))

    @property
    def good(self) -> list[float]:
        """The rates around the best one that are good, in their order."""
        return self._around_best(_GOOD)

    @property
    def middle(self) -> float:
        """The middle of the rates that are about as good as the best, which may lie at an edge."""
        equal = self._around_best(_EQUAL)
        return math.sqrt(equal[0] * equal[-1])

    @property
    def suggestion(self) -> float | None:
        """The first rate whose second training was good, too; None if chance decides."""
        return next((rate for rate, loss in self.repeated.items() if self.falls(loss, _GOOD)), None)

    def falls(self, loss: float, part: float) -> bool:
        """Return whether the fall to `loss` is at least `part` of that to the lowest loss."""
        lowest = _finite(self.losses[self.best])
        return self.first - loss >= part * (self.first - lowest)

    def _around_best(self, part: float) -> list[float]:
        rates = sorted(self.losses)
        low = high = rates.index(self.best)
        while low > 0 and self.falls(self.losses[rates[low - 1]], part):
            low -= 1
        while high + 1 < len(rates) and self.falls(self.losses[rates[high + 1]], part):
            high += 1
        return rates[low : high + 1]

    def learnt(self, guessing: float | None) -> bool:
        """Return whether the best training is better than `guessing`, if that is known."""
        lowest = self.losses[self.best]
        return math.isfinite(lowest) and (guessing is None or lowest < _LEARNT * guessing)


def explore(start: float, first: float, lowest: float, highest: float, train: Train) -> Trials:
    """Train at `start` and by half decades up and down from it, as long as that is good.

    Then train again at the rate to suggest: a loss may be due to chance.
    """
    trials = Trials(first, {start: train(start)})
    for direction in (1, -1):
        for rate in _rates(start, direction):
            if not lowest <= rate <= highest:
                break
            trials.losses[rate] = train(rate)
            # Where nothing was finite yet, lower rates may be.
            if not trials.falls(trials.losses[rate], _GOOD) and _any_finite(trials, direction):
                break
    if math.isfinite(trials.losses[trials.best]):
        _repeat(trials, train)
    return trials


def _repeat(trials: Trials, train: Train) -> None:
    """Train again amid the best rates and, if that is not good, at the best one."""
    for rate in (trials.middle, trials.best):
        if trials.suggestion is None and rate not in trials.repeated:
            trials.repeated[rate] = train(rate)


def _rates(start: float, direction: int) -> Iterator[float]:
    return (start * _FACTOR ** (direction * number) for number in range(1, _MOST_EACH_WAY + 1))


def _any_finite(trials: Trials, direction: int) -> bool:
    return direction > 0 or any(map(math.isfinite, trials.losses.values()))


def _finite(loss: float) -> float:
    return loss if math.isfinite(loss) else math.inf
