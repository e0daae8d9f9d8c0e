"""What --data may name beside a converted dataset: a function's file, Parquet, shards, tfds."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tpu_training
from tests.unit.training import pages
from tpu_training.errors import InputError
from tpu_training.job.job import Job
from tpu_training.job.start import with_converted_data
from tpu_training.loop.callbacks import Callback, LoopReport
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

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
    (tmp_path / "noise.py").write_text(pages.programs("data")["noise.py"])
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
    with pytest.raises(
        InputError, match=r"mine\.py:\d+: .*--evaluation_interval.*split validation"
    ):
        fit(data=function, model_dir=str(tmp_path / "m"), **SIZES, evaluation_interval=2)


def shards(folder: Path) -> Path:
    """A folder with one WebDataset file of 12 images, in two classes."""
    import tensorflow as tf

    folder.mkdir()
    with tarfile.open(folder / "all.tar", "w") as archive:
        for number in range(12):
            image = np.full((28, 28, 1), 20 * number, np.uint8)
            parts = {"png": tf.io.encode_png(image).numpy(), "cls": str(number % 2).encode()}
            for extension, content in parts.items():
                member = tarfile.TarInfo(f"{number:03d}.{extension}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return folder


def job(data: Path | str, model_dir: Path) -> Job:
    return Job(
        "train", None, None, None, str(data), str(model_dir), load_model("mnist_cnn"), Params()
    )


def test_shards_are_converted_once_below_the_model_directory(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets", reason="an optional library")
    given = job(shards(tmp_path / "shards"), tmp_path / "model")
    made = with_converted_data(given)
    content = json.loads(Path(made.data, "manifest.json").read_text())
    assert Path(made.data).parent == tmp_path / "model"
    assert content["splits"]["train"]["examples"] == 11
    assert [path.name for path in (tmp_path / "model").iterdir()] == [Path(made.data).name]
    monkeypatch.setattr("tpu_training.job.start._convert", None)
    assert with_converted_data(given) == made


def test_a_failed_conversion_names_the_training_flag(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="an optional library")
    (tmp_path / "broken.tar").write_bytes(b"no tar" * 100)
    with pytest.raises(
        InputError, match=r"--data=.*broken\.tar: can't be converted: .*tar file"
    ) as e:
        with_converted_data(job(tmp_path / "broken.tar", tmp_path / "model"))
    assert "--source" not in str(e.value)
    assert not list((tmp_path / "model").iterdir())
    with pytest.raises(InputError, match=r"--data=.*none\.parquet: there is no such file"):
        with_converted_data(job(tmp_path / "none.parquet", tmp_path / "model"))


def test_a_directory_or_bucket_is_left_as_it_is(tmp_path: Path) -> None:
    for data in ("gs://bucket/data", tmp_path, tmp_path / "none", tmp_path / "mine.py"):
        assert with_converted_data(job(data, tmp_path / "model")).data == str(data)
