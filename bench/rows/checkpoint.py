"""What the training loses to a checkpoint that is written behind it."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from bench.result import Result
from bench.training.mnist import run_program, write_mnist


def measure() -> list[Result]:
    """The MNIST CNN with Adam's moments, to a local disk: the fastest synchronous one there is."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        said = run_program("bench.training.checkpoint", str(data))
    figures = json.loads(said.splitlines()[-1])
    name = "checkpoint: time lost, asynchronous against synchronous"
    return [
        Result(name, figures["ratio"], "ratio", goal=0.05),
        Result("checkpoint: time lost, asynchronous", figures["async"] * 1000, "ms"),
        Result("checkpoint: time lost, synchronous", figures["sync"] * 1000, "ms"),
    ]
