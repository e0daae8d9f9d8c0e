"""`pulumi preview` of this stack against a bare program with the same Google resources."""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path

from bench.previews import Previews
from bench.result import Result
from bench.sandbox import make_project, make_trainer, write_stack
from bench.trainer.mnist import write_mnist
from tpustack.project import root

_RUNS = 5
_BARE = (root() / "bench" / "bare", "bare")


def measure() -> list[Result]:
    """Both previews in turn, after one of each to warm up; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        previews = Previews(folder / "state", TPUSTACK_BENCH_FILES=str(folder))
        ours = (make_project(folder), "local")
        training = {"wheel": str(make_trainer(folder)), "data": str(write_mnist(folder))}
        write_stack(ours[0], Path(training["wheel"]), training=training)
        for program in (ours, _BARE):
            previews.add(*program)
            previews.seconds(*program)
        pairs = [(previews.seconds(*ours), previews.seconds(*_BARE)) for _ in range(_RUNS)]
    ratio = statistics.median(first / second for first, second in pairs)
    seconds = statistics.median(first for first, _ in pairs)
    return [
        Result("preview: this stack against a bare program", ratio, "ratio", goal=1.3),
        Result("preview: this stack", seconds, "s"),
    ]
