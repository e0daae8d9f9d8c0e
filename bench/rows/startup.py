"""From the command to the end of the first step, against the smallest TensorFlow script."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.result import Result
from bench.trainer.mnist import write_mnist
from tpustack.errors import TpustackError
from tpustack.project import root

_PAIRS = 5


def measure() -> list[Result]:
    """Both in turn, after one of each to warm up; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        _ours(data), _smallest()
        pairs = [(_ours(data), _smallest()) for _ in range(_PAIRS)]
    ratio = statistics.median(first / second for first, second in pairs)
    seconds = statistics.median(first for first, _ in pairs)
    return [
        Result("start: to the first step against the smallest script", ratio, "ratio", goal=1.3),
        Result("start: to the first step", seconds, "s"),
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
