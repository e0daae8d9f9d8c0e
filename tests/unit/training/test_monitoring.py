from __future__ import annotations

import importlib.util
import logging
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tensorflow as tf

from tpu_training.data.data_set import open_data
from tpu_training.data.input.timed import TimedInput
from tpu_training.errors import EndpointError, InputError
from tpu_training.loop.callbacks import LoopReport
from tpu_training.loop.state import create_train_state
from tpu_training.models.params import Params
from tpu_training.models.registry import load_model
from tpu_training.monitoring.grid import draw_grid
from tpu_training.monitoring.model_summaries import ModelSummaries
from tpu_training.monitoring.names import variable_names
from tpu_training.monitoring.profiler import ProfileCapture, parse_steps, trace_workers
from tpu_training.monitoring.step_times import StepTimes

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training


def report(step: int, count: int = 10, last_step: int = 100) -> LoopReport:
    return LoopReport(
        step=step,
        last_step=last_step,
        count=count,
        loss=1.0,
        accuracy=0.5,
        learning_rate=0.1,
        seconds=2.0,
        checkpoint_seconds=0.5,
        input_seconds=0.5,
    )


def read_events(folder: Path) -> dict[str, list[tf.compat.v1.Summary.Value]]:
    values: dict[str, list[tf.compat.v1.Summary.Value]] = {}
    for file in folder.glob("events.*"):
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                values.setdefault(value.tag, []).append(value)
            if event.graph_def:
                values.setdefault("graph", []).append(event.graph_def)
    return values


def test_the_time_of_the_loops_is_split_without_remainder(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    times = StepTimes(tf.summary.create_noop_writer(), clock=lambda: now)
    times.start(0)
    for step, passed in ((10, 7.0), (20, 3.0), (30, 4.0)):
        now += passed
        times.between_loops(step, report(step))
    assert times.seconds == {
        "start": 7.0,
        "compute": 3.0,
        "input": 1.0,
        "checkpoint": 1.0,
        "idle": 2.0,
    }
    with caplog.at_level(logging.INFO, "tpu_training"):
        times.close()
    assert "time: start 7.0 s (50%), compute 3.0 s (21%), input 1.0 s (7%)" in caplog.text


def test_the_loop_counts_how_long_it_waits_for_its_input(cluster: Cluster) -> None:
    def slow(i: np.int64) -> np.int64:
        time.sleep(0.05)
        return i

    def source(function: object) -> TimedInput:
        numbers = tf.data.Dataset.range(100)
        if function:
            numbers = numbers.map(lambda i: tf.numpy_function(slow, [i], tf.int64))
        iterator = iter(numbers)
        return TimedInput(lambda: (next(iterator),), cluster)

    def waited(source: TimedInput) -> float:
        def loop() -> tf.Tensor:
            total = tf.constant(0, tf.int64)
            for _ in tf.range(4):
                total += tf.reshape(source()[0], ())
            return total

        tf.function(loop)()
        return source.seconds_since_last_call()

    slow_source = source(slow)
    assert waited(slow_source) >= 0.2
    assert slow_source.seconds_since_last_call() == 0.0
    assert 0.0 < waited(source(None)) < 0.2


def test_a_range_of_steps_is_profiled_in_whole_loops_and_a_signal_profiles_more() -> None:
    calls: list[tuple[Sequence[str], str, float]] = []
    capture = ProfileCapture(
        "logs", ("10.0.0.2:8470",), (25, 30), lambda *arguments: calls.append(arguments)
    )
    before = signal.getsignal(signal.SIGUSR1)
    capture.start(0)
    for step in (10, 20, 30, 40):
        capture.between_loops(step, report(step))
        if step == 10:
            assert calls == []
    # 10 steps of 0.2 s.
    assert calls == [(("10.0.0.2:8470",), "logs", 2.0)]
    os.kill(os.getpid(), signal.SIGUSR1)
    for step in (50, 60, 70, 80):
        capture.between_loops(step, report(step))
    capture.close()
    assert [seconds for _, _, seconds in calls] == [2.0, 4.0]
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_profile_of_this_process_is_a_file_for_tensorboard(
    cluster: Cluster, tmp_path: Path
) -> None:
    capture = ProfileCapture(str(tmp_path), (), (1, 5))
    capture.start(0)
    tf.linalg.matmul(tf.ones((8, 8)), tf.ones((8, 8)))
    capture.between_loops(10, report(10))
    capture.close()
    assert len(list((tmp_path / "plugins" / "profile").glob("*/*.xplane.pb"))) == 1


def test_a_worker_that_can_not_be_profiled_does_not_end_the_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def silent(*_: object) -> None:
        raise EndpointError("nobody there")

    capture = ProfileCapture("logs", ("a.b:1",), (1, 5), silent)
    capture.start(0)
    capture.between_loops(10, report(10))
    capture.close()
    assert "profile: nobody there" in caplog.text
    with pytest.raises(EndpointError, match=r"gave no profile in 0\.1 s"):
        trace_workers(["127.0.0.1:1"], "logs", 0.1)


@pytest.mark.parametrize("value", ["5", "5:", ":5", "5:4", "0:4", "a:b", "1:2:3"])
def test_another_range_of_steps_is_wrong_input(value: str) -> None:
    with pytest.raises(InputError, match="expected FIRST:LAST"):
        parse_steps(value)
    assert parse_steps("") is None
    assert parse_steps("100:120") == (100, 120)


def test_a_snapshot_shows_pictures_weights_gradients_and_the_graph(
    cluster: Cluster, bars: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = open_data(str(bars))
    params = Params(global_batch_size=64, snapshot_interval=20)
    state = create_train_state(cluster, load_model("mnist_cnn"), params, data.manifest, 10)
    before = [variable.numpy() for variable in state.model.trainable_variables]
    writer = tf.summary.create_file_writer(str(tmp_path))
    snapshots = ModelSummaries(cluster, params, data, state, writer)
    for step in (10, 20, 30, 35):
        snapshots.between_loops(step, report(step, last_step=35))
    writer.close()
    values = read_events(tmp_path)
    assert "graph" in values
    if importlib.util.find_spec("matplotlib"):
        assert len(values["test/predictions"]) == 2, "at step 20 and at the last one"
        width, height, png = tf.make_ndarray(values["test/predictions"][0].tensor)
        assert tf.io.decode_png(png).shape == (int(height), int(width), 3)
    else:
        assert "pip install 'tpu-stack-training[plots]'" in caplog.text
    histogram = tf.make_ndarray(values["weights/conv_1/kernel"][0].tensor)
    assert histogram.shape == (30, 3)
    assert histogram[:, 2].sum() == 3 * 3 * 1 * 16
    norms = [value for tag, value in values.items() if tag.startswith("gradient_norm/")]
    assert len(norms) == 8 + 1
    assert all(float(tf.make_ndarray(value.tensor)) >= 0 for (value, _) in norms)
    for old, variable in zip(before, state.model.trainable_variables, strict=True):
        np.testing.assert_array_equal(old, variable.numpy())


def test_variables_are_named_by_their_place_in_the_model() -> None:
    class Block(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.kernel = tf.Variable(1.0, name="kernel")

    class Model(tf.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [Block(), Block()]
            self.head = {"out": Block()}

    assert variable_names(Model()) == ["blocks/0/kernel", "blocks/1/kernel", "head/out/kernel"]
    foreign = SimpleNamespace(trainable_variables=[tf.Variable(1.0, name="kernel")])
    assert variable_names(foreign) == ["kernel_0"], "such as a model of Keras 3"


def test_the_grid_frames_right_and_wrong_pictures_in_their_colours() -> None:
    pytest.importorskip("PIL", reason="an optional library")
    images = np.zeros((3, 28, 28, 1), np.uint8)
    png = draw_grid(images, np.array([1, 2, 3]), np.array([1, 2, 12]))
    grid = tf.io.decode_png(png).numpy()
    assert grid.shape[2] == 3
    frames = {tuple(grid[0, left]) for left in range(grid.shape[1])}
    assert {(0, 150, 60), (210, 30, 30)} <= frames
