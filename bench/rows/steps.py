"""The memory that each step of the models and recipes needs, on all generations of TPUs."""

from __future__ import annotations

from bench import steps
from bench.result import Result
from tpu_training.compile.tpus import tpus


def measure() -> list[Result]:
    """Compile every step for every generation; tell how far a need is from the recorded one."""
    return [_measure(name, kind) for name in steps.jobs() for kind in steps.KINDS]


def _measure(name: str, kind: str) -> Result:
    figures = steps.jobs()[name].figures[kind]
    changes = []
    for generation, tpu in steps.TYPES.items():
        needed = steps.compiled(name, kind, tpus()[tpu])
        changes.append(abs(needed.needed_bytes / figures[generation] - 1))
    return Result(f"{name}: {kind}, memory against the recorded", max(changes), "ratio", 0.05)
