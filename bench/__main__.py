"""`make bench`: prints a table and writes bench/results.json."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.machine import describe
from bench.result import Result
from bench.rows import ROWS

FOLDER = Path(__file__).parent


def main() -> int:
    """Run the rows; the exit code is 1 when a goal is missed."""
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--only", choices=sorted(ROWS), help="run this one alone")
    only = parser.parse_args().only
    console = Console()
    results: list[Result] = []
    for name in [only] if only else ROWS:
        console.print(f"[dim]measuring {name} …[/]")
        results += ROWS[name]()
    console.print(_table(results))
    write(results)
    return 0 if all(result.holds for result in results) else 1


def write(results: list[Result]) -> None:
    """Write the rows, and the machine they were measured on beside them."""
    rows = [{**asdict(result), "holds": result.holds} for result in results]
    (FOLDER / "results.json").write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    (FOLDER / "machine.json").write_text(json.dumps(describe(), indent=2) + "\n", encoding="utf-8")


def _table(results: list[Result]) -> Table:
    table = Table("what", "value", "unit", "goal", "holds")
    for result in results:
        goal = "–" if result.goal is None else f"{result.sign} {result.goal:g}"
        holds = "–" if result.goal is None else "yes" if result.holds else "[red]NO[/]"
        table.add_row(result.name, f"{result.value:.4g}", result.unit, goal, holds)
    return table


if __name__ == "__main__":
    sys.exit(main())
