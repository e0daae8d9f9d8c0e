"""`make bench`: measures row by row, prints each one and writes it to bench/results.json."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from bench.measure import Result

FOLDER = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows; the exit code is 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"one of {', '.join(ROWS)}")
    names = list(dict.fromkeys(parser.parse_args(arguments).rows or ROWS))
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"no row is called {' or '.join(unknown)}; the rows are {', '.join(ROWS)}")
    machine = json.dumps(describe(), indent=2)
    (FOLDER / "machine.json").write_text(f"{machine}\n", encoding="utf-8")
    chosen = {name: ROWS[name] for name in names}
    return run(chosen, Results(FOLDER / "results.json"), Console())


def run(rows: Mapping[str, Row], results: Results, console: Console) -> int:
    """Measure rows one after the other; print and keep each as soon as it is there.

    Args:
        rows: what to measure, by name.
        results: where to keep it.
        console: where to print it.

    Returns:
        The exit code: 0, 1 when a goal is missed, 130 when the user interrupted.
    """
    expected = {name: results.seconds.get(name, row.seconds) for name, row in rows.items()}
    console.print(f"{_plural(len(rows), 'row')}, about {_spoken(sum(expected.values()))} in all")
    try:
        for name, row in rows.items():
            console.print(f"measuring {name}, which takes about {_spoken(expected[name])} …")
            begun = time.monotonic()
            measured = row.measure()
            results.add(name, measured, time.monotonic() - begun)
            console.print(_table(measured))
    except KeyboardInterrupt:
        console.print("interrupted; bench/results.json keeps the rows above")
        return 130
    results.complete()
    if results.missed:
        console.print(f"[red]{_plural(len(results.missed), 'goal')} missed:[/]")
        console.print(_table(results.missed))
    return 1 if results.missed else 0


def _table(results: list[Result]) -> Table:
    table = Table("what", "value", "unit", "goal", "holds")
    for result in results:
        goal = "–" if result.goal is None else f"{result.sign} {result.goal:g}"
        holds = "–" if result.goal is None else "yes" if result.holds else "[red]NO[/]"
        table.add_row(result.name, f"{result.value:.4g}", result.unit, goal, holds)
    return table


def _spoken(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def describe() -> dict[str, str | int | float]:
    """Processor, cores, memory, system and Python."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


class Results:
    """What a run has measured so far; each row is on disk as soon as it is added.

    Args:
        path: the JSON file. Durations that an earlier run left there are kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.seconds = _read_seconds(path)
        self._results: list[Result] = []

    @property
    def missed(self) -> list[Result]:
        """The results that miss their goal."""
        return [result for result in self._results if not result.holds]

    def add(self, row: str, results: Iterable[Result], seconds: float) -> None:
        """Write a row's results; the file stays marked as incomplete.

        Args:
            row: the row's name.
            results: what it measured.
            seconds: how long that took.
        """
        self._results += results
        self.seconds[row] = round(seconds, 1)
        self._write(complete=False)

    def complete(self) -> None:
        """Write that no row is missing."""
        self._write(complete=True)

    def _write(self, *, complete: bool) -> None:
        results = [{**asdict(result), "holds": result.holds} for result in self._results]
        content = {"complete": complete, "results": results, "seconds": self.seconds}
        # Replaced as a whole: an interrupted write loses no earlier row.
        new = self._path.with_suffix(".new")
        new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        os.replace(new, self._path)


def _read_seconds(path: Path) -> dict[str, float]:
    content: Any = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return dict(content.get("seconds", {}))


@dataclass(frozen=True)
class Row:
    """Something that is measured.

    Attributes:
        seconds: how long that takes on two cores, until results.json knows it of this machine.
        measure: measures it.
    """

    seconds: float
    measure: Callable[[], list[Result]]


def _row(module: str, name: str, seconds: float) -> Row:
    """Load the module only when the row is measured."""

    def measure() -> list[Result]:
        function = getattr(importlib.import_module(f"bench.{module}"), f"measure_{name}")
        results: list[Result] = function()
        return results

    return Row(seconds, measure)


_SECONDS = {
    "stacks": {"preview": 60, "deploy": 90, "slices": 90, "request": 120, "criticalpath": 120},
    "jobs": {"jobs": 300, "dashboard": 60},
    "recovery": {"kill_to_step": 300, "killpoints": 1500},
    "agent": {"agent": 100},
    "month": {"month": 5},
    "data": {"reads": 60, "shuffle": 20, "input": 240, "pipeline": 90},
    "training": {
        "endpoint": 120,
        "startup": 90,
        "checkpoint": 60,
        "loops": 60,
        "save": 30,
        "keras": 300,
        "rates": 1800,
    },
    "compile": {"compile": 60, "compiled": 1000, "steps": 180},
}
ROWS = {
    name: _row(module, name, seconds)
    for module, rows in _SECONDS.items()
    for name, seconds in rows.items()
}


if __name__ == "__main__":
    sys.exit(main())
