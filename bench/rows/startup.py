"""From the command to the end of the first step, against the smallest TensorFlow script."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.result import Result
from bench.trainer.mnist import write_mnist
from bench.turns import in_turn
from tpustack.errors import TpustackError
from tpustack.project import root

_PAIRS = 5


def measure() -> list[Result]:
    """Both in turn, after one of each to warm up; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        _ours(data), _smallest()
        took = in_turn(lambda: _ours(data), _smallest, _PAIRS)
    name = "start: to the first step"
    return [
        Result(f"{name} against the smallest script", took.ratio, "ratio", goal=1.3),
        Result(name, took.first, "s"),
    ]


def _ours(data: Path) -> float:
    with tempfile.TemporaryDirectory() as results:
        arguments = ["train", f"--data={data}", f"--model-dir={results}", "--steps_per_loop=1"]
        return _seconds_until("progress step=1/", "tpu_training", *arguments)


def _smallest() -> float:
    return _seconds_until("first step:", "bench.trainer.smallest")


def _seconds_until(line: str, module: str, *arguments: str) -> float:
    command = [sys.executable, "-m", module, *arguments]
    begun = time.perf_counter()
    with subprocess.Popen(
        command, cwd=root(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout
        try:
            if any(said.startswith(line) for said in process.stdout):
                return time.perf_counter() - begun
        finally:
            process.kill()
    raise TpustackError(f"{' '.join(command)} ended before it said {line!r}")
