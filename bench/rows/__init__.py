"""What is measured, by name; each row is loaded when it runs."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from bench.result import Result


def _lazy(module: str) -> Callable[[], list[Result]]:
    def measure() -> list[Result]:
        results: list[Result] = importlib.import_module(f"bench.rows.{module}").measure()
        return results

    return measure


_NAMES = (
    "preview",
    "slices",
    "request",
    "criticalpath",
    "endpoint",
    "localcloud",
    "killpoints",
    "keras",
    "checkpoint",
    "startup",
    "pipeline",
    "input",
)
ROWS: dict[str, Callable[[], list[Result]]] = {name: _lazy(name) for name in _NAMES}
