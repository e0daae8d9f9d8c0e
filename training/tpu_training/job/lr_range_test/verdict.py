"""Conclude from a sweep and the trials after it which learning rates are good.

Uses plain numbers, no TensorFlow. training/docs/lr-range-test.md shows how the conclusions compare
with a grid of trainings.
"""

import math
from dataclasses import dataclass, field

from tpu_training.job.lr_range_test.curve import Reading
from tpu_training.job.lr_range_test.trials import Trials


@dataclass(frozen=True)
class Verdict:
    """The boundaries of the regions, as learning rates, and the suggestion.

    Attributes:
        good_from: Where the good region begins; None without one, like the next two.
        good_to: Where the good region ends.
        suggestion: The suggested peak of a schedule.
        diverged: Whether sweep or trials reached the diverging region.
        reasons: The explanation, in sentences.
        smoothed: The curve that was judged.
        trials: The loss at the end of each trial by its rate; None where it was not finite.
    """

    good_from: float | None
    good_to: float | None
    suggestion: float | None
    diverged: bool
    reasons: tuple[str, ...]
    smoothed: tuple[float, ...]
    trials: dict[float, float | None] = field(default_factory=dict)


def conclude(
    reading: Reading, trials: Trials | None, steps: int, guessing: float | None
) -> Verdict:
    """Return the verdict; `steps` is a trial's length, `guessing` the loss of equal chances."""
    if trials is None:
        return Verdict(None, None, None, reading.diverged, (reading.problem,), reading.smoothed)
    losses = {
        rate: loss if math.isfinite(loss) else None for rate, loss in sorted(trials.losses.items())
    }
    warnings = (reading.warning,) if reading.warning else ()
    suggestion = trials.suggestion if trials.learnt(guessing) else None
    if suggestion is None:
        reason = _why_none(trials, steps, guessing)
        return Verdict(
            None, None, None, reading.diverged, (reason, *warnings), reading.smoothed, losses
        )
    good = trials.good
    return Verdict(
        good_from=good[0],
        good_to=good[-1],
        suggestion=suggestion,
        diverged=reading.diverged or good[-1] < max(losses),
        reasons=(*_reasons(trials, suggestion, steps), *warnings),
        smoothed=reading.smoothed,
        trials=losses,
    )


def _why_none(trials: Trials, steps: int, guessing: float | None) -> str:
    lowest = trials.losses[trials.best]
    if not math.isfinite(lowest):
        return (
            f"no training of {steps} steps stays finite, from {min(trials.losses):.2g} to "
            f"{max(trials.losses):.2g}: the model or its loss is at fault, not the rate"
        )
    if trials.learnt(guessing):
        repeated = " and ".join(
            f"{loss:.3g} at {rate:.2g}" for rate, loss in trials.repeated.items()
        )
        return (
            f"how a training of {steps} steps ends is chance: the lowest loss is {lowest:.3g} at "
            f"{trials.best:.2g}, but with other batches {repeated}. Raise --trial-steps, or take "
            "another optimizer"
        )
    return (
        f"at no rate does the model learn more than how to guess in {steps} steps: the loss is "
        f"{lowest:.3g} at best, guessing has {guessing:.3g}. The labels do not belong to the "
        "inputs, or the inputs that reach the model are all alike; on a hard task raise "
        "--trial-steps"
    )


def _reasons(trials: Trials, suggestion: float, steps: int) -> list[str]:
    good, tried = trials.good, sorted(trials.losses)
    low = f"below {good[0]:.2g} a training of {steps} steps gets less far"
    if good[0] == tried[0]:
        low = f"the lowest rate that was tried, {good[0]:.2g}, is good already: lower --min-rate"
    high = f"above {good[-1]:.2g} it gets less far or diverges"
    if good[-1] == tried[-1]:
        high = f"up to {good[-1]:.2g} it did not diverge: the edge lies higher, raise --max-rate"
    best = f"at {trials.best:.2g} it ends lowest, with a loss of {trials.losses[trials.best]:.3g}"
    amid = "amid the rates that end about as low"
    if suggestion != trials.middle:
        amid = "which is good with other batches, too"
    middle = f"{suggestion:.2g}, {amid}, is a good peak"
    return [low, f"{best}; {middle} for a schedule with warm-up", high]
