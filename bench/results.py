"""The file that keeps what was measured, row by row."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.result import Result


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
    # Before durations were kept, the file was a list of results.
    return dict(content.get("seconds", {})) if isinstance(content, dict) else {}
