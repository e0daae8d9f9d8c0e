"""Training examples whose labels are probably wrong are found and shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tpu_training.data.convert.convert import convert
from tpu_training.data.convert.source import Options
from tpu_training.errors import InputError
from tpu_training.job.doubtful import Looked

pytestmark = pytest.mark.training

# Examples of the training set that get the label of another class.
WRONG = (17, 101, 250)
# Of the file of labels.
HEADER = 8


def test_a_label_is_in_doubt_where_another_class_is_as_sure_as_that_class_usually_is() -> None:
    looked = Looked(
        losses=np.array([0.1, 2.3, 1.2, 0.2]),
        labels=np.array([0, 0, 0, 1]),
        predicted=np.array([0, 1, 1, 1]),
        own=np.array([0.9, 0.1, 0.3, 0.8]),
        highest=np.array([0.9, 0.9, 0.7, 0.8]),
    )
    assert looked.doubtful.tolist() == [False, True, False, False]
    assert [row["example"] for row in looked.worst(2)] == [1, 2]


def test_wrong_labels_of_a_data_set_lead_its_list_and_stand_in_the_report(
    run_here: Callable[..., None], write_mnist: Callable[..., None], tmp_path: Path
) -> None:
    write_mnist(tmp_path / "idx", train=640)
    path = tmp_path / "idx" / "train-labels-idx1-ubyte"
    content = bytearray(path.read_bytes())
    for place in WRONG:
        content[HEADER + place] = (place + 3) % 10
    path.write_bytes(content)
    convert(str(tmp_path / "idx"), str(tmp_path / "data"), Options(name="bars"))
    where = (f"--data={tmp_path / 'data'}", f"--model-dir={tmp_path / 'model'}")
    # Its batch does not divide the examples.
    sizes = ("--global_batch_size=64", "--evaluation_batch_size=100", "--snapshot_interval=0")
    run_here("train", *where, *sizes, "--epochs=4", "--doubtful_labels=5")
    found = json.loads((tmp_path / "model" / "doubtful.json").read_text())
    first = {row["example"]: row for row in found["examples"][:3]}
    assert first.keys() == set(WRONG)
    assert all(row["probably_wrong"] for row in first.values())
    assert all(row["label"] == (row["predicted"] + 3) % 10 for row in first.values())
    assert (found["probably_wrong"], found["of"], len(found["examples"])) == (3, 640, 5)
    page = (tmp_path / "model" / "report.html").read_text()
    assert "3 of all 640 are probably labelled wrongly" in page
    assert "<td>250</td><td>3</td><td>0</td>" in page


def test_a_task_without_a_class_for_each_example_is_refused(
    bars: Path, run_here: Callable[..., None], tmp_path: Path
) -> None:
    where = (f"--data={bars}", f"--model-dir={tmp_path}")
    (tmp_path / "task.py").write_text(OTHER)
    with pytest.raises(InputError, match="--doubtful_labels=5: is for examples with one class"):
        run_here("train", *where, f"--model={tmp_path / 'task.py'}", "--doubtful_labels=5")


OTHER = """
from tpu_training.models.mnist_cnn import Params, create_model
from tpu_training.models.losses import softmax_cross_entropy
from tpu_training.models.task import Task

task = Task("other", softmax_cross_entropy)
"""
