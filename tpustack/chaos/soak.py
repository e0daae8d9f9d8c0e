"""A scenario by chance: so many faults, spread over a job's steps, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

VM, TPU = "tpu-stack-local-vm-0", "tpu-stack-local-tpu"
STEPS_A_FAULT = 10
_CALLS = ("storage.*", "storage.objects.get", "storage.objects.insert", "storage.objects.list")
# TensorFlow waits twice as long after each, up to half a minute: ten in a row take two.
_MOST_ERRORS = 3
Event = dict[str, Any]
Draw = Callable[[random.Random], Event]


def _error(status: int) -> Draw:
    def draw(chance: random.Random) -> Event:
        count = chance.randint(1, _MOST_ERRORS)
        return {"error": {"method": chance.choice(_CALLS), "status": status, "count": count}}

    return draw


def _slow(chance: random.Random) -> Event:
    seconds, count = round(chance.uniform(0.1, 1.5), 2), chance.randint(1, 8)
    return {"slow": {"method": chance.choice(_CALLS), "seconds": seconds, "count": count}}


def _tpu_error(chance: random.Random) -> Event:
    status = chance.choice((429, 500, 503))
    return {"error": {"method": "tpu.*", "status": status, "count": chance.randint(1, 3)}}


def _stockout(chance: random.Random) -> Event:
    zone = {"zone": "us-central1-b", "types": ["*"]}
    return {"stockout": zone, "for": round(chance.uniform(1, 20), 1)}


def _full_disk(chance: random.Random) -> Event:
    return {"full-disk": VM, "for": round(chance.uniform(0.5, 4), 1)}


def _hang(chance: random.Random) -> Event:
    return {"hang": TPU, "for": round(chance.uniform(0.2, 4), 1)}


# How often each comes, of 200: rarely what takes a minute to be over.
_WEIGHTS: tuple[tuple[int, Draw], ...] = (
    (32, _error(429)),
    (32, _error(500)),
    (32, _error(503)),
    (32, _slow),
    (18, _tpu_error),
    (4, lambda chance: {"expire-tokens": VM}),
    (12, _stockout),
    (10, _hang),
    (6, _full_disk),
    (10, lambda chance: {"kill": {"machine": VM, "process": "agent.py"}}),
    (7, lambda chance: {"kill": {"machine": VM, "process": "-m tpu_training"}}),
    (1, lambda chance: {"delete-objects": "*/lease.json"}),
    (3, lambda chance: {"preempt": TPU}),
    (1, lambda chance: {"preempt": VM}),
)


def steps_for(faults: int) -> int:
    """Return how many steps a job needs for so many faults: the last come before its end."""
    return (faults + 3) * STEPS_A_FAULT


def scenario(faults: int, seed: int) -> dict[str, list[Event]]:
    """Return a scenario with so many events; each waits for a step, and then for a moment more."""
    chance = random.Random(seed)
    weights, draws = zip(*_WEIGHTS, strict=True)
    events = []
    for number in range(1, faults + 1):
        [draw] = chance.choices(draws, weights)
        when = {"serial": VM, "says": f"progress step={number}\\d/"}
        moment = {"when": when, "after": round(chance.uniform(0, 1.5), 2)}
        events.append({**moment, **draw(chance)})
    return {"events": events}
