"""Steps a second through the TPU's gRPC endpoint against the same replicas in this process.

And the host's work between two loops, in which the cores of a TPU would do nothing.
"""

from __future__ import annotations

import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.result import Result
from bench.trainer.mnist import run_program, write_mnist
from bench.turns import in_turn
from tpustack.errors import TpustackError
from tpustack.project import root

_PAIRS = 3
_REPLICAS = 8
_WORKER = root() / "localcloud" / "localcloud" / "machines" / "guest" / "tpu_worker.py"
_SECONDS = 60.0
# The worker's own settings, for the process without it.
_THREADS = {"TF_NUM_INTEROP_THREADS": str(_REPLICAS), "TF_NUM_INTRAOP_THREADS": "1"}


def measure() -> list[Result]:
    """One epoch of MNIST each, in turn; the ratio is that of each pair."""
    with tempfile.TemporaryDirectory() as folder, _worker(Path(folder)) as endpoint:
        data = write_mnist(Path(folder))
        remote = [f"--tpu={endpoint}"]
        local = [f"--local_devices={_REPLICAS}"]
        between: list[float] = []
        steps = in_turn(lambda: _train(data, remote, between), lambda: _train(data, local), _PAIRS)
    name = "endpoint: steps/s"
    return [
        Result(f"{name} against in process", steps.ratio, "ratio", goal=0.97, better="higher"),
        Result(name, steps.first, "1/s", better="higher"),
        Result("endpoint: between two loops", 1000 * statistics.median(between), "ms", goal=2.0),
    ]


@contextmanager
def _worker(folder: Path) -> Iterator[str]:
    """The local cloud's TPU runtime, as a process of its own."""
    ready = folder / "ready"
    command = [sys.executable, str(_WORKER), f"--devices={_REPLICAS}", f"--ready={ready}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as worker:
        try:
            deadline = time.monotonic() + _SECONDS
            while not ready.exists():
                if worker.poll() is not None or time.monotonic() > deadline:
                    raise TpustackError("the TPU's worker process did not start")
                time.sleep(0.1)
            yield f"grpc://127.0.0.1:{ready.read_text(encoding='ascii')}"
        finally:
            worker.kill()


def _train(data: Path, where: list[str], between: list[float] | None = None) -> float:
    """Return the steps a second; add the seconds between each two loops to `between`."""
    with tempfile.TemporaryDirectory() as results:
        target = ["--data", str(data), "--model-dir", results]
        arguments = ["train-and-evaluate", *target, *where, "--epochs=1"]
        run_program("tpu_training", *arguments, environment=_THREADS)
        metrics = json.loads((Path(results) / "metrics.json").read_text(encoding="utf-8"))
        report = json.loads((Path(results) / "report.json").read_text(encoding="utf-8"))
    if between is not None:
        between += _between_loops(report["series"]["seconds_per_step/idle"])
    if metrics["replicas"] != _REPLICAS:
        raise TpustackError(f"{metrics['replicas']} replicas instead of {_REPLICAS}")
    return float(metrics["steps_per_second"])


def _between_loops(idle: Mapping[str, float]) -> list[float]:
    """Return the seconds between loops, from those for each of their steps by the loop's end."""
    points = sorted((int(step), seconds) for step, seconds in idle.items())
    pairs = itertools.pairwise(points)
    return [(step - before) * seconds for (before, _), (step, seconds) in pairs]
