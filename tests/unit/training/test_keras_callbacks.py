"""Keras' own callbacks in `fit`, called as `keras.Model.fit` calls them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tpu_training
from tpu_training.errors import InputError

keras = pytest.importorskip("keras")

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = [
    pytest.mark.training,
    pytest.mark.skipif(not hasattr(keras, "Variable"), reason="own models need Keras 3"),
]

RANDOM = np.random.default_rng(5)
FEATURES = RANDOM.normal(size=(60, 3)).astype(np.float32)
CLASSES = (FEATURES.sum(axis=1) > 0).astype(np.int32)
DATA = {"train": (FEATURES[:40], CLASSES[:40]), "validation": (FEATURES[40:], CLASSES[40:])}
# Two steps are an epoch.
SIZES = {"global_batch_size": 20, "evaluation_batch_size": 20, "steps_per_loop": 1, "epochs": 4}


def create_model(params: Any, spec: Any, seed: int) -> Any:
    inputs = keras.Input((3,))
    model = keras.Model(inputs, keras.layers.Dense(2, kernel_initializer="zeros")(inputs))
    model.compile(
        keras.optimizers.SGD(0.1),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return model


@pytest.fixture
def fit(
    one_device: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tpu_training.Result]:
    monkeypatch.setattr("tpu_training.job.run.connect", lambda *_: one_device)

    def run(*callbacks: Any, **settings: Any) -> tpu_training.Result:
        given = {"data": DATA, "model_dir": str(tmp_path / "model"), **SIZES, **settings}
        return tpu_training.fit(create_model, callbacks=callbacks, **given)

    return run


def test_they_are_called_as_by_keras_with_the_figures_of_an_epoch(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    calls: list[Any] = []
    told = {
        "on_train_begin": lambda logs: calls.append("begin"),
        "on_epoch_begin": lambda epoch, logs: calls.append(f"epoch {epoch}"),
        "on_train_batch_end": lambda batch, logs: calls.append(batch),
        "on_epoch_end": lambda epoch, logs: calls.append(sorted(logs)),
        "on_train_end": lambda logs: calls.append("end"),
    }
    file = tmp_path / "curves.csv"
    result = fit(
        keras.callbacks.LambdaCallback(**told),
        keras.callbacks.CSVLogger(str(file)),
        epochs=2,
        evaluation_interval=2,
    )
    names = ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert calls == ["begin", "epoch 0", 0, 1, names, "epoch 1", 2, 3, names, "end"]
    header, _, second = file.read_text().splitlines()
    assert header.split(",") == ["epoch", *names]
    found = dict(zip(header.split(","), map(float, second.split(",")), strict=True))
    losses = [row["loss"] for row in result.history]
    assert found["loss"] == pytest.approx(sum(losses[2:]) / 2)
    assert found["val_loss"] == pytest.approx(result.history[-1]["validation_loss"])


def test_without_validations_an_epoch_ends_with_the_data(
    fit: Callable[..., tpu_training.Result],
) -> None:
    calls: list[Any] = []
    told = lambda epoch, logs: calls.append((epoch, sorted(logs)))  # noqa: E731
    fit(keras.callbacks.LambdaCallback(on_epoch_end=told), epochs=2.5, steps_per_loop=3)
    assert calls == [(epoch, ["accuracy", "loss"]) for epoch in (0, 1, 2)]


def test_they_lower_the_rate_and_stop(fit: Callable[..., tpu_training.Result]) -> None:
    # No validation improves by so much, so that each one after the first halves the rate.
    plateau = keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, min_delta=10)
    stop = keras.callbacks.EarlyStopping(patience=2, min_delta=10)
    result = fit(plateau, stop, evaluation_interval=2)
    rates = [row["learning_rate"] for row in result.history]
    assert rates == pytest.approx([0.1] * 4 + [0.05] * 2)
    assert result.metrics["steps"] == 6


def test_a_schedule_of_rates_by_epochs_is_followed(
    fit: Callable[..., tpu_training.Result],
) -> None:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5**epoch)
    rates = [row["learning_rate"] for row in fit(scheduler, epochs=3, steps_per_loop=3).history]
    assert rates == pytest.approx([1, 0.5, 0.25])


def test_a_rate_of_zero_is_left_again(fit: Callable[..., tpu_training.Result]) -> None:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 * epoch)
    rates = [row["learning_rate"] for row in fit(scheduler, epochs=3).history]
    assert rates == pytest.approx([0, 0, 0.1, 0.1, 0.2, 0.2])


@pytest.mark.parametrize("interval", [0, 2])
@pytest.mark.parametrize("end", [3, 4])
def test_a_restart_lowers_the_rate_no_second_time(
    fit: Callable[..., tpu_training.Result], interval: int, end: int
) -> None:
    class Crash(tpu_training.Callback):
        def between_loops(self, step: int, report: tpu_training.LoopReport) -> None:
            if step == end:
                raise RuntimeError

    def train(*callbacks: Any) -> list[float]:
        halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
        result = fit(*callbacks, halved, evaluation_interval=interval, checkpoint_interval=1)
        return [row["learning_rate"] for row in result.history]

    with pytest.raises(InputError, match="RuntimeError"):
        train(Crash())
    assert train() == pytest.approx([0.1 / 2 ** (1 + step // 2) for step in range(end, 8)])


def test_a_rate_lowered_at_the_end_of_an_epoch_stays_after_a_restart_there(
    fit: Callable[..., tpu_training.Result], tmp_path: Path
) -> None:
    class Crash(tpu_training.Callback):
        def between_loops(self, step: int, report: tpu_training.LoopReport) -> None:
            if step == 4:
                raise RuntimeError

    def train(*callbacks: Any, folder: str = "parts") -> list[float]:
        told = {"monitor": "loss", "factor": 0.5, "patience": 1, "min_delta": 10}
        plateau = keras.callbacks.ReduceLROnPlateau(**told)
        sizes = {"epochs": 3, "checkpoint_interval": 1, "model_dir": str(tmp_path / folder)}
        return [row["learning_rate"] for row in fit(*callbacks, plateau, **sizes).history]

    with pytest.raises(InputError, match="RuntimeError"):
        train(Crash())
    assert train() == train(folder="whole")[4:] == pytest.approx([0.05, 0.05])


def test_an_epoch_after_a_stop_begins_with_its_own_rate(
    fit: Callable[..., tpu_training.Result],
) -> None:
    class Stop(tpu_training.Callback):
        def before_loop(self, step: int, report: tpu_training.LoopReport) -> None:
            if step == 4:
                self.control.stop()

    halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    stopped, resumed = fit(Stop(), halved), fit(halved)
    rates = [row["learning_rate"] for row in (*stopped.history, *resumed.history)]
    assert rates == pytest.approx([0.1 / 2 ** (1 + step // 2) for step in range(8)])


def test_a_rate_of_an_epoch_that_another_host_lacks_is_refused_before_a_step(
    fit: Callable[..., tpu_training.Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Watch(tpu_training.Callback):
        def before_loop(self, step: int, report: tpu_training.LoopReport) -> None:
            ended.append(step)

    ended: list[int] = []
    spread = "tpu_training.cluster.cluster.Cluster.spread"
    # Of what hosts compare, only a factor lies in between.
    monkeypatch.setattr(spread, lambda _, mine: (mine, 1.0 if 0 < mine < 1 else mine))
    halved = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 if epoch else rate)
    with pytest.raises(InputError, match=r"scale_rate\(1\) on one host, 0.5 on another"):
        fit(Watch(), halved)
    assert ended == [1, 2]


def test_rates_by_epoch_are_refused_where_a_schedule_changes_them_too(
    fit: Callable[..., tpu_training.Result],
) -> None:
    scheduler = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1)
    with pytest.raises(InputError, match=r"LearningRateScheduler\]: sets the rate, which a sche"):
        fit(scheduler, optimizer="sgd")
    fit(scheduler, optimizer="sgd", warmup_fraction=0, schedule="constant")


def test_a_callback_of_ones_own_reaches_the_keras_model(
    fit: Callable[..., tpu_training.Result],
) -> None:
    sums: list[float] = []
    base: Any = keras.callbacks.Callback

    class Own(base):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            sums.append(float(np.abs(self.model.get_weights()[0]).sum()))
            self.model.stop_training = epoch == 1

    assert fit(Own()).metrics["steps"] == 4
    assert 0 < sums[0] < sums[1]


@pytest.mark.parametrize(
    ("callback", "words"),
    [
        (lambda: keras.callbacks.ModelCheckpoint("x.keras"), "omit ModelCheckpoint; the trainer"),
        (lambda: keras.callbacks.BackupAndRestore("x"), "omit BackupAndRestore; the same call of"),
        (lambda: keras.callbacks.TensorBoard("x"), "omit TensorBoard; the trainer writes MODEL_"),
        (
            lambda: keras.callbacks.EarlyStopping(restore_best_weights=True),
            r"callbacks=\[EarlyStopping\]: omit restore_best_weights; take the best with tpu_tra",
        ),
    ],
)
def test_what_the_trainer_does_itself_is_refused_with_the_cure(
    fit: Callable[..., tpu_training.Result], callback: Callable[[], Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        fit(callback())
