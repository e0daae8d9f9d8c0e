"""A training reads the data that a function gives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tpu_training
from tpu_training.errors import InputError
from tpu_training.loop.callbacks import Callback, LoopReport

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

PAGE = Path(__file__).parents[3] / "training" / "docs" / "data.md"
SIZES = {"global_batch_size": 8, "evaluation_batch_size": 8, "steps_per_loop": 1, "epochs": 3}

FUNCTION = """
import tensorflow as tf


def dataset(split, context):
    if split == "validation":
        return None
    numbers = tf.data.Dataset.range(20).shuffle(20, seed=context.seed)

    def draw(number):
        noise = tf.random.stateless_uniform((28, 28, 1), (context.seed, number), 0, 256, tf.int32)
        return tf.cast(noise, tf.uint8), number % 2

    return numbers.map(draw)
"""


@pytest.fixture
def fit(one_device: Cluster, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tpu_training.Result]:
    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: one_device)
    return tpu_training.fit


@pytest.fixture
def function(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(FUNCTION)
    return str(tmp_path / "mine.py")


def test_the_function_of_the_page_trains(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    (code,) = re.findall(r"^```python\n([^`]*class_names[^`]*)^```", PAGE.read_text(), re.M)
    (tmp_path / "noise.py").write_text(code)
    result = fit(
        data=str(tmp_path / "noise.py"),
        model_dir=str(tmp_path / "model"),
        **SIZES | {"global_batch_size": 40, "evaluation_batch_size": 50},
    )
    assert result.metrics["test_accuracy"] > 0.95
    description = json.loads((tmp_path / "model" / "model.json").read_text())
    assert description["class_names"] == ["low", "high"]


class Fail(Callback):
    """Ends the training in the middle of its second epoch."""

    def between_loops(self, step: int, report: LoopReport) -> None:
        if step == 4:
            raise InterruptedError


def test_a_job_resumed_within_an_epoch_of_a_function_ends_with_the_same_weights(
    fit: Callable[..., tpu_training.Result], function: str, tmp_path: Path
) -> None:
    whole = fit(data=function, model_dir=str(tmp_path / "whole"), **SIZES)
    parted: dict[str, Any] = {"data": function, "model_dir": str(tmp_path / "parted")}
    with pytest.raises(tpu_training.TrainingError):
        fit(**parted, **SIZES, callbacks=[Fail()], checkpoint_interval=3)
    resumed = fit(**parted, **SIZES, checkpoint_interval=3)
    for mine, theirs in zip(whole.model.variables, resumed.model.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    assert whole.metrics["test_loss"] == resumed.metrics["test_loss"]


def test_evaluations_between_the_loops_need_a_split_of_the_function(
    fit: Callable[..., tpu_training.Result], function: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=r"mine\.py: .*--evaluation_interval.*split validation"):
        fit(data=function, model_dir=str(tmp_path / "m"), **SIZES, evaluation_interval=2)
