"""`make bench`: measures row by row, prints each one and writes it to bench/results.json."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.machine import describe
from bench.result import Result
from bench.results import Results
from bench.rows import ROWS, Row

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


if __name__ == "__main__":
    sys.exit(main())
