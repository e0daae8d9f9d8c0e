"""`pulumi preview` of this stack against a bare program with the same Google resources."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bench.previews import Previews
from bench.result import Result
from bench.sandbox import make_project, make_trainer, write_stack
from bench.trainer.mnist import write_mnist
from bench.turns import in_turn
from tpustack.project import root

_RUNS = 5
_BARE = (root() / "bench" / "bare", "bare")


def measure() -> list[Result]:
    """Both in today's environment."""
    return against_bare("preview: this stack", Path(sys.prefix), goal=1.3)


def against_bare(name: str, environment: Path, goal: float) -> list[Result]:
    """Both previews in turn, after one of each to warm up; the ratio is that of each pair.

    Args:
        name: what the rows are called.
        environment: the virtual environment that runs this stack's program; the bare one runs in
            the project's own.
        goal: what the ratio may be at most.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        previews = Previews(folder / "state", TPUSTACK_BENCH_FILES=str(folder))
        ours = (make_project(folder, environment), "local")
        training = {"wheel": str(make_trainer(folder)), "data": str(write_mnist(folder))}
        write_stack(ours[0], Path(training["wheel"]), training=training)
        for program in (ours, _BARE):
            previews.add(*program)
            previews.seconds(*program)
        took = in_turn(lambda: previews.seconds(*ours), lambda: previews.seconds(*_BARE), _RUNS)
    return [
        Result(f"{name} against a bare program", took.ratio, "ratio", goal=goal),
        Result(name, took.first, "s"),
    ]
