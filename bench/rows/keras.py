"""The trainer's loop against Keras' `fit` with the best `steps_per_execution`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from bench.result import Result
from bench.trainer.mnist import run_program, write_mnist

_MODELS = {"mobilenet_v2": "MobileNetV2 at 32 x 32", "transformer": "a small transformer"}


def measure() -> list[Result]:
    """The trainer's own network and Keras' like it; then Keras models in both, on this machine."""
    with tempfile.TemporaryDirectory() as folder:
        data = write_mnist(Path(folder))
        results = _results("", run_program("bench.trainer.keras_fit", str(data)))
        for name, words in _MODELS.items():
            arguments = (name, f"{folder}/{name}")
            results += _results(
                f" of {words}", run_program("bench.trainer.keras_models", *arguments)
            )
    return results


def _results(model: str, printed: str) -> list[Result]:
    figures = json.loads(printed.splitlines()[-1])
    fit = f"Keras fit, {figures['steps_per_execution']} steps per execution"
    against = f"training: steps/s{model} against Keras fit"
    return [
        Result(against, figures["ratio"], "ratio", 1.0, "higher"),
        Result(f"training: steps/s{model}", figures["ours"], "1/s", better="higher"),
        Result(f"training: steps/s{model} of {fit}", figures["keras"], "1/s", better="higher"),
    ]
