"""Thirty days on spot TPUs, simulated with the agent's real code, beside others' loops.

Assumptions: bench/month (trace.py, simulate.py). `MONTH_TRACE=FILE make bench ONLY=month` takes the
TPUs of a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import mean

from bench.month.simulate import simulate
from bench.month.strategies import STRATEGIES
from bench.month.trace import drawn, read
from bench.result import Result

_SEEDS = range(5)
# Goals in percent, of the agent only.
_GOALS = {"availability": 99.0, "goodput": 98.0}


def measure() -> list[Result]:
    """The mean of five months, or the one month of the file."""
    path = os.environ.get("MONTH_TRACE")
    results = []
    for strategy in STRATEGIES:
        traces = [read(Path(path))] if path else [drawn(seed) for seed in _SEEDS]
        months = [simulate(strategy, trace) for trace in traces]
        for figure, goal in _GOALS.items():
            value = 100 * mean(getattr(month, figure) for month in months)
            wanted = goal if strategy.name == "agent" else None
            name = f"month: {figure}, {strategy.name}"
            results.append(Result(name, value, "%", wanted, better="higher"))
    return results
