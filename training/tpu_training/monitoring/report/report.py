"""Gathers the report of a model directory from what lies in it: events, metrics, model."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_training.data import files
from tpu_training.data.manifest import TEST, TRAIN, VALIDATION
from tpu_training.errors import InputError
from tpu_training.goodput.account import account
from tpu_training.goodput.ledger import Ledger, read
from tpu_training.monitoring.ledger import read_ledger
from tpu_training.monitoring.report.events import Series, last_picture, read_series
from tpu_training.monitoring.step_times import PARTS, TAG


@dataclass(frozen=True)
class Report:
    """A training's course and outcome.

    `metrics`, `model` and `classes` are the contents of the files of these names, `series` every
    scalar of TensorBoard by tag and step, `seconds` where the time of the steps went; `picture` is
    the newest grid of predictions, a PNG. `cost_note` says what the machines go on costing; "" if
    nobody told. `ledger` is that of all starts.
    """

    model_dir: str
    metrics: Mapping[str, Any]
    model: Mapping[str, Any]
    classes: Mapping[str, Any]
    series: Mapping[str, Series]
    seconds: Mapping[str, float]
    picture: bytes | None
    cost_note: str = ""
    ledger: Ledger = field(default_factory=lambda: read(()))

    def to_json(self) -> str:
        """All but the picture, with the ledger added up."""
        content = dataclasses.asdict(self)
        del content["picture"], content["ledger"]
        content["goodput"] = account(self.ledger).to_dict()
        return json.dumps(content, indent=1) + "\n"


def read_report(model_dir: str, *, cost_note: str = "") -> Report:
    """Read what a training left in `model_dir`. Raises InputError when it left nothing."""
    base = model_dir.rstrip("/")
    files.check_bucket(model_dir, "--model-dir")
    series = read_series(f"{base}/tensorboard")
    if not series:
        raise InputError(f"--model-dir={model_dir}: no training has written its course there")
    return Report(
        model_dir=model_dir,
        metrics=files.read_json(f"{base}/metrics.json"),
        model=files.read_json(f"{base}/model.json"),
        classes=files.read_json(f"{base}/classes.json"),
        series=series,
        seconds=_seconds(series),
        picture=_picture(f"{base}/tensorboard"),
        cost_note=cost_note,
        ledger=read_ledger(base),
    )


def _picture(logdir: str) -> bytes | None:
    """Return the newest picture of predictions; older releases drew test examples."""
    splits = (VALIDATION, TRAIN, TEST)
    found = (last_picture(logdir, f"{split}/predictions") for split in splits)
    return next((picture for picture in found if picture), None)


def _seconds(series: Mapping[str, Series]) -> dict[str, float]:
    """Seconds of each part, from the seconds per step at the end of each loop."""
    seconds = dict.fromkeys(PARTS, 0.0)
    steps = sorted(series.get("train/loss", {}))
    counts = {step: step - before for before, step in zip([0, *steps], steps, strict=False)}
    for part in PARTS:
        for step, value in series.get(f"{TAG}/{part}", {}).items():
            seconds[part] += value * counts.get(step, 0)
    return seconds
