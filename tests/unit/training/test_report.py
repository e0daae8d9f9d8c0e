from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tpu_training.data.data_set import open_data
from tpu_training.job.job import Job
from tpu_training.job.run import Metrics
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model
from tpu_training.monitoring.measurements import write_report
from tpu_training.monitoring.summaries import Summaries, read_series

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training


def test_a_report_has_results_curves_classes_and_parameters(digits_model: Path) -> None:
    content = json.loads((digits_model / "report.json").read_text())
    metrics = json.loads((digits_model / "metrics.json").read_text())
    assert content["metrics"] == metrics
    assert content["model"]["params"]["global_batch_size"] == 64
    assert content["series"]["train/loss"][str(metrics["steps"])] == pytest.approx(
        metrics["train_loss"], rel=1e-3
    )
    classes = json.loads((digits_model / "classes.json").read_text())
    assert content["classes"] == classes
    assert sum(map(sum, classes["confusion"])) == 360
    right = sum(row[number] for number, row in enumerate(classes["confusion"]))
    assert right / 360 == pytest.approx(metrics["test_accuracy"])
    assert set(content["seconds"]) == {"compute", "input", "checkpoint", "idle"}
    assert content["seconds"]["compute"] > 0
    assert 0 < content["goodput"]["goodput"] < 1
    assert (content["format"], content["cost_note"], content["problems"]) == (1, "", [])


def test_the_table_of_classes_goes_with_the_weights_and_the_classes_that_it_counted(
    digits: Path, digits_model: Path, one_device: Cluster, tmp_path: Path
) -> None:
    """What trains without a test has no table of its own."""
    job = Job("train", None, None, None, "", "", load_model("mnist_cnn"), Params())
    data = open_data(str(digits))
    names = [str(number) for number in range(10)]
    steps = json.loads((digits_model / "metrics.json").read_text())["steps"]
    for after, named, stays in (
        (steps, names, True),
        (steps + 1, names, False),
        (steps, [*reversed(names)], False),
    ):
        for name in ("metrics.json", "classes.json"):
            shutil.copy(digits_model / name, tmp_path / name)
        manifest = dataclasses.replace(data.manifest, class_names=tuple(named))
        metrics = Metrics(one_device, job, dataclasses.replace(data, manifest=manifest))
        metrics.values["steps"] = after
        metrics.write(str(tmp_path))
        assert (tmp_path / "classes.json").exists() == stays


def test_a_report_says_what_the_machines_keep_costing_if_the_environment_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Not by tf.summary.scalar, which needs TensorBoard from TensorFlow 2.20 on.
    summaries = Summaries(f"{tmp_path}/tensorboard")
    summaries.scalars(1, {"train/loss": 1.0})
    summaries.close()
    monkeypatch.setenv("TPU_TRAINING_COST_NOTE", "A TPU costs until `pulumi destroy`.")
    write_report(str(tmp_path))
    content = json.loads((tmp_path / "report.json").read_text())
    assert content["cost_note"] == "A TPU costs until `pulumi destroy`."


def test_a_course_over_two_starts_is_one_and_the_later_start_counts(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same second, and as the ninth and the tenth of a process."""
    monkeypatch.setattr("tpu_training.monitoring.summaries._numbers", itertools.count(9))
    for start, steps in ((0, (10, 20, 30)), (1, (20, 40))):
        summaries = Summaries(str(tmp_path))
        for step in steps:
            summaries.scalars(step, {"train/loss": step + start / 2})
        summaries.close()
    last = max(tmp_path.iterdir())
    last.write_bytes(last.read_bytes() + b"half a record")
    series = read_series(str(tmp_path))
    assert series == {"train/loss": {10: 10.0, 20: 20.5, 30: 30.0, 40: 40.5}}
