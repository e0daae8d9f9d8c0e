"""How long TPUs live and take to come: drawn by chance, or from a file of somebody's own.

A trace is a JSON list with an object for each TPU in turn: `lives` and `takes`, both in seconds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The rhythm of a table that SkyPilot published for spot TPUs, taken over from notes: a preemption
# in about 16 hours, 9.8 minutes from one job to the next. Its own deletion and half a poll are no
# part of the cloud's time to create.
LIFE_SECONDS = 16 * 3600.0
DELETE_SECONDS = 45.0
CREATE_SECONDS = 9.8 * 60 - DELETE_SECONDS - 7.5
# A life is exponential; a creation is within half of its mean.
_SPREAD = 0.5


@dataclass(frozen=True)
class Tpu:
    """One TPU: seconds from its creation to READY, and from then to its preemption."""

    takes: float
    lives: float


def drawn(seed: int) -> Iterator[Tpu]:
    """Draw TPUs for ever."""
    chance = random.Random(seed)
    while True:
        takes = CREATE_SECONDS * chance.uniform(1 - _SPREAD, 1 + _SPREAD)
        yield Tpu(takes, chance.expovariate(1 / LIFE_SECONDS))


def read(path: Path) -> Iterator[Tpu]:
    """Read a trace; the last TPU lives for ever. Raises ValueError with what is wrong."""
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        tpus = [Tpu(float(entry["takes"]), float(entry["lives"])) for entry in entries]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no trace ({type(error).__name__}: {error}); write a JSON list of objects "
            'like {"takes": 535, "lives": 57600}, in seconds'
        ) from error
    yield from tpus
    yield Tpu(CREATE_SECONDS, float("inf"))
