"""What the learning-rate range test suggests, against a grid of trainings."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

from bench.result import Result
from bench.trainer.tried import Tried

_MOST_LOST = 1.0


def measure() -> list[Result]:
    """Try all pairs of model and data with each optimizer; print each as soon as it is there."""
    from bench.trainer.rates import OPTIMIZERS, PAIRS, try_pair, write_data

    tried = []
    with tempfile.TemporaryDirectory() as folder:
        data = write_data(Path(folder))
        for pair in itertools.product(PAIRS, OPTIMIZERS):
            tried.append(try_pair(data, *pair))
            print(tried[-1].row, flush=True)
    return results(tried)


def results(tried: list[Tried]) -> list[Result]:
    """Return the largest loss of accuracy, and how many pairs get no suggestion."""
    lost = [pair.lost for pair in tried if pair.lost is not None]
    name = f"range test: {len(tried)} pairs"
    return [
        Result(
            f"{name}, most that a suggestion loses", max(lost, default=0.0), "points", _MOST_LOST
        ),
        Result(f"{name}, without a suggestion", len(tried) - len(lost), ""),
    ]
