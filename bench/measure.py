"""What the rows share: a measured figure, two programs in turn, MNIST, a program of its own."""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpustack import datasets
from tpustack.errors import TpustackError
from tpustack.project import root

LOOK_SECONDS, _MOST_SECONDS = 0.05, 300.0


@dataclass(frozen=True)
class Result:
    """A row of the table.

    Attributes:
        name: what was measured.
        value: the figure, in `unit`.
        unit: such as `ratio`, `1/s`, `ms`, `MiB`.
        goal: what it must reach; None where it is only told.
        better: which way is better.
    """

    name: str
    value: float
    unit: str
    goal: float | None = None
    better: Literal["lower", "higher"] = "lower"

    @property
    def sign(self) -> str:
        """The goal's comparison sign."""
        return "≤" if self.better == "lower" else "≥"

    @property
    def holds(self) -> bool:
        """Whether the goal is reached."""
        if self.goal is None:
            return True
        return self.value <= self.goal if self.better == "lower" else self.value >= self.goal


@dataclass(frozen=True)
class Compared:
    """Medians of both programs' figures, and of the first's divided by the second's, by pairs."""

    ratio: float
    first: float
    second: float


def in_turn(first: Callable[[], float], second: Callable[[], float], rounds: int) -> Compared:
    """Measure both `rounds` times, one after the other: both meet the same machine."""
    return compare([(first(), second()) for _ in range(rounds)])


def compare(pairs: list[tuple[float, float]]) -> Compared:
    """Return the ratio and the medians of pairs that were measured together."""
    firsts, seconds = zip(*pairs, strict=True)
    ratio = statistics.median(one / other for one, other in pairs)
    return Compared(ratio, statistics.median(firsts), statistics.median(seconds))


def write_mnist(folder: Path) -> Path:
    """Convert MNIST for the trainer into `folder`/data."""
    target = folder / "data"
    source = datasets.mnist(lambda text: None).argument
    run_program("tpu_training", "data", "convert", "--source", source, "--output", str(target))
    return target


def run_program(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Run `python -m module`, with more variables in its environment; return what it says."""
    command = [sys.executable, "-m", module, *arguments]
    own = {**os.environ, **(environment or {})}
    done = subprocess.run(command, cwd=root(), env=own, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise TpustackError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr}")
    return done.stdout


def wait_for(until: Callable[[], bool], what: str) -> float:
    """Wait until it is so; return the time."""
    deadline = time.monotonic() + _MOST_SECONDS
    while not until():
        if time.monotonic() > deadline:
            raise TpustackError(f"{what} did not come within {_MOST_SECONDS:.0f} s")
        time.sleep(LOOK_SECONDS)
    return time.time()
