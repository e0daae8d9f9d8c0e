"""The trainer's loop against Keras' `fit` with the best `steps_per_execution`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from bench.result import Result
from bench.trainer.mnist import run_program, write_mnist


def measure() -> list[Result]:
    """MNIST at batch 256, the same network and optimizer, on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        figures = json.loads(run_program("bench.trainer.keras_fit", str(data)).splitlines()[-1])
    fit = f"Keras fit, {figures['steps_per_execution']} steps per execution"
    return [
        Result("training: steps/s against Keras fit", figures["ratio"], "ratio", 1.0, "higher"),
        Result("training: steps/s", figures["ours"], "1/s", better="higher"),
        Result(f"training: steps/s of {fit}", figures["keras"], "1/s", better="higher"),
    ]
