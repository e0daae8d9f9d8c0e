"""What is measured, by name; each row is loaded when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

from bench.result import Result


@dataclass(frozen=True)
class Row:
    """Something that is measured.

    Attributes:
        seconds: how long that takes on two cores, as measured last.
        measure: measures it.
    """

    seconds: float
    measure: Callable[[], list[Result]]


def _lazy(module: str) -> Callable[[], list[Result]]:
    def measure() -> list[Result]:
        results: list[Result] = importlib.import_module(f"bench.rows.{module}").measure()
        return results

    return measure


# Once a row has run here, results.json knows how long it takes on this machine.
_SECONDS = {
    "preview": 60,
    "deploy": 90,
    "slices": 90,
    "request": 120,
    "criticalpath": 120,
    "endpoint": 120,
    "localcloud": 15,
    "jobs": 300,
    "dashboard": 60,
    "killpoints": 1500,
    "keras": 300,
    "checkpoint": 120,
    "loops": 60,
    "save": 30,
    "startup": 90,
    "pipeline": 180,
    "input": 240,
    "compile": 60,
    "compiled": 1000,
    "shuffle": 20,
    "reads": 60,
    "rates": 1800,
    "steps": 180,
    "month": 5,
    "kill_to_step": 300,
    "agent": 100,
}
ROWS: dict[str, Row] = {name: Row(seconds, _lazy(name)) for name, seconds in _SECONDS.items()}
