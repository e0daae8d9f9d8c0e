"""Training with the real input pipeline against a batch that is on the device already.

And what photographs take of the host's processor.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import tensorflow as tf

from bench.result import Result
from bench.trainer.mnist import run_program
from bench.turns import Compared, in_turn
from tpu_training.cluster.cluster import Cluster, connect
from tpu_training.cluster.endpoint import NoTpu, Wait
from tpu_training.data.convert.convert import convert
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.input.pipeline import training_batches
from tpu_training.loop.state import create_train_state
from tpu_training.loop.train import create_train_loop
from tpu_training.models.registry import load_model
from tpustack.demo import dataset

_PAIRS = 9


@dataclass(frozen=True)
class Case:
    """A model on MNIST: its parameters, and the steps of each turn."""

    model: str
    parameters: dict[str, Any]
    steps: int


CASES = (
    Case("mnist_cnn", {"global_batch_size": 1024}, steps=12),
    Case(
        "resnet",
        {"global_batch_size": 128, "depth": 8, "augmentation": "pad_crop_flip"},
        steps=4,
    ),
)


def measure() -> list[Result]:
    """Turns of each, one after the other; the ratio is the median of those of each pair."""
    with tempfile.TemporaryDirectory() as folder:
        source = dataset.obtain(lambda text: None).argument
        convert(source, str(Path(folder) / "data"))
        data = open_data(str(Path(folder) / "data"))
        cluster = connect(NoTpu(), Wait(), local_devices=0)
        measured = [result for case in CASES for result in _measure(cluster, data, case)]
        return measured + _photographs(Path(folder))


def _measure(cluster: Cluster, data: DataSet, case: Case) -> list[Result]:
    model = load_model(case.model)
    params = model.params(**case.parameters)
    state = create_train_state(cluster, model, params, data.manifest, 10_000)
    real_batches = training_batches(data, cluster, params)
    one_batch = real_batches()
    real = create_train_loop(cluster, params, state, real_batches)
    synthetic = create_train_loop(cluster, params, state, lambda: one_batch)

    def turns(rounds: int) -> Compared:
        return in_turn(
            lambda: _steps_per_second(real, case.steps),
            lambda: _steps_per_second(synthetic, case.steps),
            rounds,
        )

    turns(1)
    steps = turns(_PAIRS)
    rate = steps.first * params.global_batch_size
    name = f"input: {case.model}, batch {params.global_batch_size}"
    return [
        Result(f"{name}: against data on the device", steps.ratio, "ratio", 0.97, "higher"),
        Result(f"{name}: examples/s", rate, "1/s", better="higher"),
    ]


def _photographs(folder: Path) -> list[Result]:
    figures = json.loads(run_program("bench.trainer.photographs", str(folder / "photographs")))
    name = f"input: photographs of {figures['bytes'] / 1000:.0f} kB, a core's"
    return [
        Result(f"{name} images/s", figures["per_core"], "1/s", better="higher"),
        Result(
            f"{name} images/s without decoding", figures["without_images"], "1/s", better="higher"
        ),
    ]


def _steps_per_second(loop: Callable[[tf.Tensor], object], steps: int) -> float:
    started = time.perf_counter()
    loop(tf.constant(steps))
    return steps / (time.perf_counter() - started)
