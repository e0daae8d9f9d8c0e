"""`make bench`: measures row by row, prints each one and writes it to bench/results.json."""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measure import Result
from tpu_core.words import duration, plural

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Row:
    """Something that is measured, and the seconds that this takes on two cores."""

    seconds: float
    measure: Callable[[], list[Result]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rows; the exit code is 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="row", help=f"one of {', '.join(ROWS)}")
    names = list(dict.fromkeys(parser.parse_args(arguments).rows or ROWS))
    if unknown := [name for name in names if name not in ROWS]:
        parser.error(f"no row is called {' or '.join(unknown)}; the rows are {', '.join(ROWS)}")
    chosen = {name: ROWS[name] for name in names}
    return run(chosen, FOLDER / "results.json", Console())


def run(rows: Mapping[str, Row], path: Path, console: Console) -> int:
    """Measure rows one after the other; print and keep each (in `path`) as soon as it is there.

    The exit code is 0, 1 when a goal is missed, 130 when the user interrupted.
    """
    seconds = sum(row.seconds for row in rows.values())
    console.print(f"{plural(len(rows), 'row')}, about {duration(seconds)} in all")
    results: list[Result] = []
    try:
        for name, row in rows.items():
            console.print(f"measuring {name}, which takes about {duration(row.seconds)} …")
            measured = row.measure()
            results += measured
            _write(path, results, complete=False)
            console.print(_table(measured))
    except KeyboardInterrupt:
        console.print("interrupted; bench/results.json keeps the rows above")
        return 130
    _write(path, results, complete=True)
    missed = [result for result in results if not result.holds]
    if missed:
        console.print(f"[red]{plural(len(missed), 'goal')} missed:[/]")
        console.print(_table(missed))
    return 1 if missed else 0


def _table(results: list[Result]) -> Table:
    table = Table("what", "value", "unit", "goal", "holds")
    for result in results:
        goal = "–" if result.goal is None else f"{result.sign} {result.goal:g}"
        holds = "–" if result.goal is None else "yes" if result.holds else "[red]NO[/]"
        table.add_row(result.name, f"{result.value:.4g}", result.unit, goal, holds)
    return table


def _write(path: Path, measured: Sequence[Result], *, complete: bool) -> None:
    """Keep what a run has measured so far: an interrupted write loses no earlier row."""
    results = [{**asdict(result), "holds": result.holds} for result in measured]
    content = {"complete": complete, "results": results}
    new = path.with_suffix(".new")
    new.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    os.replace(new, path)


def _row(module: str, name: str, seconds: float) -> Row:
    """Load the module only when the row is measured."""

    def measure() -> list[Result]:
        function = getattr(importlib.import_module(f"bench.{module}"), f"measure_{name}")
        results: list[Result] = function()
        return results

    return Row(seconds, measure)


_SECONDS = {
    "stacks": {"preview": 60, "slices": 90, "request": 120, "criticalpath": 120},
    "jobs": {"jobs": 300, "first_job": 150, "first_answer": 40, "uvx": 300, "dashboard": 60},
    "recovery": {"kill_to_step": 300, "killpoints": 1300, "agent": 100},
    "month": {"month": 5},
    "cloud": {"cloud": 30},
    "data": {"reads": 60, "shuffle": 20, "input": 240, "pipeline": 120, "packing": 30},
    "training": {
        "endpoint": 120,
        "startup": 90,
        "second_start": 150,
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
