"""What a trial has reached, from what its job wrote into the bucket.

While it runs, its log tells: a line that is a JSON object with the metric and maybe `step`, or one
with `step=` and `METRIC=` in it, as the trainer writes them. Once it is over, `metrics.json` in
MODEL_DIR comes first, which the trainer writes.
"""

from __future__ import annotations

import json
import re

from tpu_agent.jobs.queue import Queue
from tpu_core import paths

# A longer line is no report.
_LONGEST = 64 << 10
_STEP = re.compile(rb"\bstep=(\d+)")


class Reports:
    """Follows the log of one job, and keeps the metric by step."""

    def __init__(self, queue: Queue, job: str, metric: str) -> None:
        self._queue, self._job, self._metric = queue, job, metric
        self._word = re.compile(rb"\b" + re.escape(metric.encode()) + rb"=([-+.\w]+)")
        self._behind, self._rest = "", b""
        self._values: dict[int, float] = {}

    def read(self) -> tuple[tuple[int, float], ...]:
        """Return step and metric, as far as the bucket has them. Raises StoreError."""
        for item in self._queue.store.items(paths.logs(self._job), behind=self._behind):
            found = self._queue.store.read(item.path)
            self._behind = item.path
            *lines, rest = (self._rest + (found[0] if found else b"")).split(b"\n")
            self._rest = rest[-_LONGEST:]
            for line in lines:
                self._add(line)
        return tuple(sorted(self._values.items()))

    def final(self) -> float | None:
        """Return the metric at the end of the job; None if it never wrote one."""
        kept = self._queue.store.read(f"{paths.folder(self._job)}model/metrics.json")
        value = _number(_object(kept[0]).get(self._metric)) if kept else None
        if value is not None:
            return value
        reports = self.read()
        if self._rest:
            self._add(self._rest)
            reports = tuple(sorted(self._values.items()))
        return reports[-1][1] if reports else None

    def _add(self, line: bytes) -> None:
        if len(line) >= _LONGEST or self._metric.encode() not in line:
            return
        content = _object(line)
        value, step = _number(content.get(self._metric)), _number(content.get("step"))
        if value is None and (word := self._word.search(line)) and (said := _STEP.search(line)):
            value, step = _number(word[1].decode(errors="replace")), float(said[1])
        if value is not None:
            following = max(self._values, default=0) + 1
            # The sweep's record takes no larger one.
            known = step is not None and abs(step) <= 2**52
            self._values[int(step) if known and step is not None else following] = value


def _object(text: bytes) -> dict[str, object]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _number(value: object) -> float | None:
    """Return a number, also one that is written as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
