"""`tpustack ci preview` of a request that touches four stacks, against the slowest of them."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.previews import preview_environment
from bench.result import Result
from bench.sandbox import make_project, make_trainer, write_stack
from bench.turns import compare
from tpustack.ci.deployment import Preview, preview
from tpustack.ci.result import Outcome, Run
from tpustack.engine.backend import Backend
from tpustack.errors import TpustackError

_RUNS = 5
_STACKS = ("local", "dev", "staging", "prod")


def measure() -> list[Result]:
    """Side by side, after one run to warm up."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        project, trainer = make_project(folder), make_trainer(folder)
        for stack in _STACKS:
            write_stack(project, trainer, stack)
        backend = Backend(preview_environment(folder / "state"), project)
        job = Run(backend, project, folder, lambda line: None)
        _run(job)
        took = compare([_run(job) for _ in range(_RUNS)])
    return [
        Result("request: four previews against the slowest", took.ratio, "ratio", goal=1.5),
        Result("request: four previews", took.first, "s"),
    ]


def _run(job: Run) -> tuple[float, float]:
    """Seconds of all, and of the slowest."""
    started = time.perf_counter()
    results = preview(job, _STACKS, Preview())
    seconds = time.perf_counter() - started
    for result in results:
        if result.outcome is not Outcome.CHANGES:
            raise TpustackError(f"the preview of {result.stack} failed: {result.problem}")
    return seconds, max(result.seconds for result in results)
