"""Trains at the rate that the range test suggests, and at the half decades of a grid."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import mean

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from bench.trainer.mnist import run_program, write_mnist
from bench.trainer.tried import TIMES, Tried, train_grid
from tpu_training.cluster.cluster import connect
from tpu_training.cluster.endpoint import NoTpu, Wait
from tpu_training.data.data_set import open_data
from tpu_training.job.lr_range_test import RateTrainer, Sweep, run_sweep, run_trials
from tpu_training.job.lr_verdict import read
from tpu_training.job.start import prepare_tensorflow
from tpu_training.loop.evaluation import create_evaluation
from tpu_training.models.params import build_params
from tpu_training.models.registry import load_model
from tpustack.project import root

RECIPES = root() / "training" / "recipes"
_BATCHES = {"mnist": 256, "digits": 64, "reviews": 64}
# The model and its data; wide is the own model of a recipe's page.
PAIRS = (
    *(("wide", "mnist"), ("mnist_cnn", "mnist"), ("mnist_cnn", "digits")),
    *(("bert", "reviews"), ("resnet", "digits")),
)
# The grid's exponents of 10, in halves, by optimizer.
OPTIMIZERS = {"adam": range(-8, 1), "sgd": range(-6, 3), "lars": range(-2, 4)}
_HIGHEST = {"lars": 100.0}
_SWEEP_STEPS, _SMOOTHING, _STEPS = 150, 0.9, 100


def write_data(folder: Path) -> Path:
    """Convert all data sets into subfolders of `folder`, and write the own model."""
    write_mnist(folder).rename(folder / "mnist")
    _convert(folder, "digits", "--source", "digits")
    subprocess.run([sys.executable, "-c", _code("bert-reviews")], cwd=folder, check=True)
    source = ("--source", str(folder / "reviews.csv"))
    _convert(folder, "reviews", *source, "--text-length", "16", "--test-fraction", "0.5")
    (folder / "wide.py").write_text(_code("own-model"), encoding="utf-8")
    return folder


def _convert(folder: Path, name: str, *arguments: str) -> None:
    run_program("tpu_training", "data", "convert", "--output", str(folder / name), *arguments)


def _code(recipe: str) -> str:
    page = (RECIPES / f"{recipe}.md").read_text(encoding="utf-8")
    return str(re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)[0])


def try_pair(folder: Path, pair: tuple[str, str], optimizer: str) -> Tried:
    """Run the range test of a pair, then train at the suggestion and over the grid."""
    name, data = pair
    model = load_model(str(folder / "wide.py") if name == "wide" else name)
    settings = {"optimizer": optimizer, "global_batch_size": str(_BATCHES[data])}
    settings |= {"depth": "8"} if name == "resnet" else {}
    params = build_params({}, settings.items(), (), model.params)
    prepare_tensorflow(None, trains=True)
    cluster, held = connect(NoTpu(), Wait(), 0), open_data(str(folder / data))
    trainer = RateTrainer(cluster, model, params, held, _SWEEP_STEPS)
    evaluate = create_evaluation(cluster, params, held, trainer.state)

    def accuracy(rate: float) -> float:
        trainer.try_rate(rate, _STEPS)
        return evaluate().metrics["accuracy"]

    sweep = Sweep(1e-6, _HIGHEST.get(optimizer, 10.0), _SWEEP_STEPS, _SMOOTHING, _STEPS)
    reading = read(run_sweep(trainer, sweep), sweep.smoothing)
    suggestion = None
    if reading.lowest:
        suggestion = run_trials(trainer, sweep, reading.lowest, reading.first).suggestion
    grid = train_grid([10 ** (half / 2) for half in OPTIMIZERS[optimizer]], accuracy)
    at = f"{name}, {data} | {optimizer}"
    if suggestion is None:
        return Tried(at, grid, None)
    return Tried(at, grid, suggestion, mean(accuracy(suggestion) for _ in range(TIMES)))
