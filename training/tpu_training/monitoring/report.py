"""A training's course and outcome as one JSON document, from what its model directory holds."""

import json
import os
from collections.abc import Mapping
from typing import Any

from tpu_training.data import files
from tpu_training.errors import InputError
from tpu_training.goodput.account import account
from tpu_training.monitoring.events import Series, read_series
from tpu_training.monitoring.ledger import read_ledger
from tpu_training.monitoring.step_times import PARTS, TAG

FORMAT = 1
COST_NOTE = "TPU_TRAINING_COST_NOTE"
"""The variable that says what the machines keep costing, and which command ends that."""
_FILES = ("metrics", "model", "classes")


def read_report(model_dir: str) -> dict[str, Any]:
    """Return what a training has left in `model_dir`, over all of its starts.

    `series` has every scalar of TensorBoard by tag and step, `seconds` where the time of the steps
    went, `goodput` where the wall time did; `metrics`, `model` and `classes` are the files of these
    names.

    Raises:
        InputError: No training has written anything there.
    """
    base = model_dir.rstrip("/")
    files.check_bucket(model_dir, "--model-dir")
    series = read_series(f"{base}/tensorboard")
    if not series:
        raise InputError(f"--model-dir={model_dir}: no training has written its course there")
    ledger = read_ledger(base)
    return {
        "format": FORMAT,
        "model_dir": model_dir,
        **{name: files.read_json(f"{base}/{name}.json") for name in _FILES},
        "series": series,
        "seconds": _seconds(series),
        "cost_note": os.environ.get(COST_NOTE, ""),
        "goodput": account(ledger).to_dict(),
        "problems": ledger.problems,
    }


def write_report(model_dir: str) -> str:
    """Write the report to `report.json` in `model_dir` and return its path."""
    path = f"{model_dir.rstrip('/')}/report.json"
    files.write_text(path, json.dumps(read_report(model_dir), indent=1) + "\n")
    return path


def _seconds(series: Mapping[str, Series]) -> dict[str, float]:
    """Return the seconds of each part, from the seconds per step at the end of each loop."""
    seconds = dict.fromkeys(PARTS, 0.0)
    steps = sorted(series.get("train/loss", {}))
    counts = {step: step - before for before, step in zip([0, *steps], steps, strict=False)}
    for part in PARTS:
        for step, value in series.get(f"{TAG}/{part}", {}).items():
            seconds[part] += value * counts.get(step, 0)
    return seconds
