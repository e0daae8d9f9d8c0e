"""`tpu-training compile`: how fast it answers, and how much memory it takes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

import psutil

from bench.compiling import recipe
from bench.result import Result

_QUICK_SECONDS, _QUICK_GB, _COMPARE_SECONDS = 15.0, 1.2, 90.0


def measure() -> list[Result]:
    """Run the command for ResNet-50, without a cache."""
    quick = _seconds("--tpu=v3-8", "--quick")
    compare = _seconds("--compare=v2-8,v3-8,v5litepod-8,v6e-8")
    memory = _peak("--tpu=v3-8", "--quick")
    return [
        Result("compile: first answer, ResNet-50 on v3", quick, "s", _QUICK_SECONDS),
        Result("compile: memory of that, all processes (PSS)", memory, "GB", _QUICK_GB),
        Result("compile: --compare of four generations", compare, "s", _COMPARE_SECONDS),
    ]


def _seconds(*arguments: str) -> float:
    """Return how long the command takes where all modules are compiled to bytecode already."""
    begun = time.monotonic()
    with _command(*arguments) as process:
        process.wait()
    return time.monotonic() - begun


def _peak(*arguments: str) -> float:
    """Return the command's peak memory in GB: looking at it slows it down."""
    peak = 0.0
    with _command(*arguments) as process:
        while process.poll() is None:
            peak = max(peak, _memory(process.pid))
            time.sleep(0.1)
    return peak / 1e9


@contextmanager
def _command(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command without a cache."""
    command = [sys.executable, "-m", "tpu_training", "compile", *arguments]
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "XDG_CACHE_HOME": folder}
        with subprocess.Popen(
            [*command, *recipe("resnet50-imagenet")], env=environment, stdout=subprocess.DEVNULL
        ) as process:
            yield process
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}")


def _memory(pid: int) -> float:
    """Return the memory of a process and its children; what they share counts once."""
    total = 0.0
    try:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            total += one.memory_full_info().pss
    except psutil.Error:
        pass  # It has just ended.
    return total
