"""Models of keras.applications train, resume to the bit and are exported, as small as they can be.

Each takes a minute, so only `make newest` has them.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tpu_training
from tests.unit.training.test_keras_models import _content

OLDER = tuple(map(int, tf.__version__.split(".")[:2])) < (2, 20)
# In one line with what it needs, by which `make unit` leaves the file out.
pytestmark = [pytest.mark.training, pytest.mark.skipif(OLDER, reason="run by `make newest`")]

RANDOM = np.random.default_rng(2)
IMAGES = RANDOM.integers(0, 256, (24, 32, 32, 3), dtype=np.uint8)
LABELS = np.arange(24) % 3
DATA = {"train": (IMAGES[:16], LABELS[:16]), "test": (IMAGES[16:], LABELS[16:])}
MODEL = """
from tensorflow import keras


def create_model(spec):
    return keras.applications.{}(
        {}weights=None, classes=spec.classes, input_shape=spec.shape, pooling="avg"
    )
"""


@pytest.fixture
def fit(one_device: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tpu_training.Result]:
    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: one_device)
    return tpu_training.fit


@pytest.mark.parametrize(
    ("name", "size"),
    [("MobileNetV2", "alpha=0.35, "), ("EfficientNetB0", ""), ("ResNet50", "")],
)
def test_it_trains_resumes_to_the_bit_and_answers_alike_when_exported(
    fit: Callable[..., tpu_training.Result], tmp_path: Path, name: str, size: str
) -> None:
    (tmp_path / "net.py").write_text(MODEL.format(name, size))
    job: dict[str, Any] = {
        "model": str(tmp_path / "net.py"),
        "data": DATA,
        "mode": "train",
        "epochs": 1,
        "global_batch_size": 8,
        "evaluation_batch_size": 8,
        "checkpoint_interval": 1,
    }
    result = fit(**job, model_dir=str(tmp_path / "whole"))
    saved = tf.train.latest_checkpoint(str(tmp_path / "whole" / "checkpoints"))
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for path in (tmp_path / "resumed" / "checkpoints").glob(f"{Path(saved).name}*"):
        path.unlink()
    fit(**job, model_dir=str(tmp_path / "resumed"))
    ours, theirs = _content(saved), _content(saved.replace("whole", "resumed"))
    assert ours.keys() == theirs.keys()
    assert any("moving_variance" in key for key in ours)
    assert all((ours[key] == theirs[key]).all() for key in ours)
    line = tpu_training.export(str(tmp_path / "whole"), str(tmp_path / "out"))
    exported = tf.saved_model.load(line.removeprefix("saved_model="))
    found = exported.signatures["serving_default"](images=tf.constant(IMAGES[16:]))
    expected = result.predict(IMAGES[16:])["probabilities"]
    np.testing.assert_allclose(found["probabilities"], expected, rtol=1e-4, atol=1e-6)
