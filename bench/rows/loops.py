"""What the host does between two loops of steps, in which the devices wait for it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from bench.result import Result
from bench.trainer.mnist import run_program, write_mnist

# Of the time from the first loop's end to the last one's.
_GOAL = 0.02


def measure() -> list[Result]:
    """A job with all of its callbacks, TensorBoard and ledger, in loops of 20 steps, on MNIST."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        said = run_program("bench.trainer.loops", str(data), f"{folder}/results")
    figures: dict[str, float] = json.loads(said.splitlines()[-1])
    return [
        Result("loops: host work between loops", figures["share"], "part", _GOAL),
        Result("loops: the same for each loop", figures["each"] * 1000, "ms"),
    ]
