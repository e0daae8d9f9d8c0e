"""Compile jobs for TPUs, as `tpu-training compile` does, without its cache."""

import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench.measure import Result
from tests import published, steps
from tpu_training.compile.answer import tpus
from tpu_training.compile.session import search

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

RECIPES = Path(__file__).parent.parent / "training" / "recipes"
# Each recipe with the data that it is for.
JOBS = {
    "mnist": ("--shape=28x28x1", "--classes=10"),
    "resnet-fashion-mnist": ("--shape=28x28x1", "--classes=10"),
    "bert-reviews": ("--shape=128", "--classes=2", "--vocabulary=8192"),
    "resnet50-imagenet": ("--shape=224x224x3", "--classes=1000"),
}


def recipe(name: str) -> list[str]:
    """Return the arguments of a recipe."""
    return [f"--config={RECIPES / name}.yaml", *JOBS[name]]


# --- `tpu-training compile`: how fast it answers, and how much memory it takes.

_QUICK_SECONDS, _QUICK_GB, _COMPARE_SECONDS = 15.0, 1.2, 90.0


def measure_compile() -> list[Result]:
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


# --- How true the answers of `tpu-training compile` are: full compiles and published times.

_GENERATIONS = ("v2-8", "v3-8", "v4-8", "v5litepod-8", "v5p-8", "v6e-8")
# Code generation for ResNet-50 takes minutes each time.
_GENERATIONS_OF = {"resnet50-imagenet": ("v3-8",)}
# Sizes of whole tiles that are tried, as multiples of the largest batch found.
_EDGE, _NEAR, _TILE = 1.01, 1.04, 8


def measure_compiled() -> list[Result]:
    """Compile recipes and published steps in full, and beyond the largest batch."""
    with published.no_cache():
        results = [*(_difference(name) for name in JOBS), _edge()]
    return [*results, *_published()]


def _difference(name: str) -> Result:
    """Compare what the quick answer says is needed with the account of the finished program.

    The quick answer is read from the same files in a full compile, before code is generated.
    """
    found = 0.0
    for tpu in _GENERATIONS_OF.get(name, _GENERATIONS):
        full = published.Step(tpu, recipe(name)).step(full=True)
        assert full.estimate
        found = max(found, abs(full.needed_bytes / full.estimate.needed_bytes - 1))
    return Result(f"compiled: memory, quick against full, {name}", found, "part", 0.05)


def _edge() -> Result:
    """Tell by how much a larger batch that fits, of those near it, exceeds the largest found."""
    job = published.Step("v3-8", recipe("resnet50-imagenet"))
    largest = search(job.step, job.part).fits
    first = math.ceil(largest * _EDGE)
    near = range(-(-first // _TILE) * _TILE, int(largest * _NEAR), _TILE)
    beyond = [size for size in near if job.step(size).fits]
    above = max(beyond, default=largest) / largest - 1
    return Result("compiled: larger batch that fits, ResNet-50 on v3", above, "part", 0.01)


def _published() -> list[Result]:
    found = []
    for one in published.compare(published.compile_all()):
        ratio = one.bound / one.published
        found.append(Result(f"compiled: bound ÷ published, {one.name}", ratio, "ratio", 1.0))
        ratio = one.published / one.estimate
        found.append(Result(f"compiled: published ÷ estimate, {one.name}", ratio, "ratio", 2.0))
    return found


# --- The memory that each step of the models and recipes needs, on all generations of TPUs.


def measure_steps() -> list[Result]:
    """Compile every step for every generation; tell how far a need is from the recorded one."""
    return [_measure(name, kind) for name in steps.jobs() for kind in steps.KINDS]


def _measure(name: str, kind: str) -> Result:
    figures = steps.jobs()[name].figures[kind]
    changes = []
    for generation, tpu in steps.TYPES.items():
        needed = steps.compiled(name, kind, tpus()[tpu])
        changes.append(abs(needed.needed_bytes / figures[generation] - 1))
    return Result(f"{name}: {kind}, memory against the recorded", max(changes), "ratio", 0.05)
