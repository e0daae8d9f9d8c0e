"""A trainer's steps a second against those of Keras' fit, measured in turn."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from bench.turns import in_turn


class Trainer(Protocol):
    """What is measured."""

    def train(self) -> None:
        """Take a fixed number of steps."""


def print_rates(
    ours: Trainer, fit: Callable[[int], Trainer], numbers: Sequence[int], steps: int, rounds: int
) -> None:
    """Find Keras' best number of steps per execution, then measure in turn; print JSON.

    Args:
        ours: this project's trainer.
        fit: makes a trainer with so many steps per execution.
        numbers: of steps per execution, to choose from.
        steps: how many each call of `train` takes.
        rounds: how many turns.
    """

    def rate(trainer: Trainer) -> float:
        begun = time.perf_counter()
        trainer.train()
        return steps / (time.perf_counter() - begun)

    ours.train()
    rates: dict[int, float] = {}
    trainers: dict[int, Trainer] = {}
    for number in numbers:
        trainers[number] = fit(number)
        trainers[number].train()
        rates[number] = rate(trainers[number])
    best = max(rates, key=lambda number: rates[number])
    turns = in_turn(lambda: rate(ours), lambda: rate(trainers[best]), rounds)
    figures = {"ratio": turns.ratio, "ours": turns.first, "keras": turns.second}
    print(json.dumps({**figures, "steps_per_execution": best}))
