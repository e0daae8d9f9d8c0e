from __future__ import annotations

import dataclasses
import logging
import os
import signal
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_callbacks

from tpu_core.ledger import Beginning
from tpu_training.data.data_set import open_data
from tpu_training.data.pipeline import TimedInput, evaluation_rows
from tpu_training.errors import EndpointError, InputError
from tpu_training.loop.callbacks import LoopReport
from tpu_training.loop.state import create_train_state
from tpu_training.models.model import variable_names
from tpu_training.models.params import Params, parse_steps
from tpu_training.models.registry import load_model
from tpu_training.monitoring.measurements import ProfileCapture, StepTimes, trace_workers
from tpu_training.monitoring.summaries import ModelSummaries, Summaries, _histogram

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

# The beginning of a picture of 3 x 2 pixels.
PNG = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", 3, 2)


def report(step: int, count: int = 10, last_step: int = 100) -> LoopReport:
    return LoopReport(
        step=step,
        last_step=last_step,
        count=count,
        loss=1.0,
        metrics={"accuracy": 0.5},
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
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    beginning = Beginning(94.0, lambda: now)
    times = StepTimes(Summaries(str(tmp_path)), beginning)
    times.start(0)
    for step, passed in ((10, 7.0), (20, 3.0), (30, 4.0)):
        now += passed
        times.between_loops(step, report(step))
    assert {part: seconds for part, seconds in times.seconds.items() if seconds} == {
        "load": 6.0,
        "start": 7.0,
        "compute": 3.0,
        "input": 1.0,
        "checkpoint": 1.0,
        "idle": 2.0,
    }
    with caplog.at_level(logging.INFO, "tpu_training"):
        times.close()
    assert "time: load 6.0 s (30%), start 7.0 s (35%), compute 3.0 s (15%)" in caplog.text


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

    def waited(source: TimedInput, batches: int) -> float:
        def loop() -> tf.Tensor:
            source.reset()
            total = tf.constant(0, tf.int64)
            for _ in tf.range(batches):
                total += tf.reshape(source()[0], ())
            return source.seconds()

        return float(tf.function(loop)())

    slow_source = source(slow)
    assert waited(slow_source, 4) >= 0.2
    assert waited(slow_source, 0) == 0.0
    assert 0.0 < waited(source(None), 4) < 0.2


def test_summaries_are_written_by_this_process_not_the_worker(
    cluster: Cluster, tmp_path: Path
) -> None:
    operations: list[str] = []

    def note(kind: str, *_: object) -> None:
        operations.append(kind)

    op_callbacks.add_op_callback(note)
    try:
        summaries = Summaries(str(tmp_path))
        summaries.scalars(1, {f"train/{number}": number / 3 for number in range(8)})
        summaries.histograms(1, {"weights": np.ones((2, 3))})
        summaries.picture(1, "grid", PNG)
        summaries.close()
        assert operations == []
        tf.constant(1) + 1
        assert operations == ["AddV2"], "those that are done are noticed"
    finally:
        op_callbacks.remove_op_callback(note)
    values = read_events(tmp_path)
    assert tf.make_ndarray(values["train/1"][0].tensor) == np.float32(1 / 3)
    assert tf.make_ndarray(values["grid"][0].tensor).tolist() == [b"3", b"2", PNG]
    assert values["weights"][0].metadata.plugin_data.plugin_name == "histograms"


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "int32"])
def test_a_histogram_of_weights_that_are_almost_equal_counts_them_all(kind: str) -> None:
    one = tf.constant([1, 1, 1], kind).numpy()
    if kind != "int32":
        one[0] -= np.finfo(np.float32).epsneg if kind == "float32" else one.dtype.type(2**-8)
    for values in (one, one * 0):
        left, right, counts = _histogram(values).T
        assert counts.sum() == 3
        assert (left < right).all()


def test_summaries_are_flushed_every_half_minute(tmp_path: Path) -> None:
    now = 0.0
    summaries = Summaries(str(tmp_path), clock=lambda: now)
    for step in range(2):
        now += 14.0
        summaries.scalars(step, {"train/loss": 1.0})
    assert not read_events(tmp_path)
    now += 14.0
    summaries.scalars(3, {"train/loss": 1.0})
    assert len(read_events(tmp_path)["train/loss"]) == 3
    summaries.close()


def test_a_range_of_steps_is_profiled_in_whole_loops_and_a_signal_profiles_more() -> None:
    calls: list[tuple[Sequence[str], str, float]] = []
    capture = ProfileCapture(
        "logs", ("10.0.0.2:8470",), (25, 30), lambda *arguments: calls.append(arguments)
    )
    before = signal.getsignal(signal.SIGUSR1)
    capture.start(0)
    for step in (10, 20, 30, 40):
        capture.before_loop(step, report(step))
        if step == 10:
            assert calls == []
    # 10 steps of 0.2 s.
    assert calls == [(("10.0.0.2:8470",), "logs", 2.0)]
    os.kill(os.getpid(), signal.SIGUSR1)
    for step in (50, 60, 70, 80):
        capture.before_loop(step, report(step))
    capture.close()
    assert [seconds for _, _, seconds in calls] == [2.0, 4.0]
    assert signal.getsignal(signal.SIGUSR1) == before


def test_a_program_s_own_handler_of_the_profile_s_signal_stays() -> None:
    heard = list[int]()
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        own = signal.getsignal(signal.SIGUSR1)
        capture = ProfileCapture("logs", (), None)
        capture.start(0)
        os.kill(os.getpid(), signal.SIGUSR1)
        capture.before_loop(10, report(10))
        capture.close()
        assert heard == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR1) == own
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_profile_that_cannot_be_ended_leaves_no_handler_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    capture = ProfileCapture("logs", (), (1, 5), lambda *_: None)
    monkeypatch.setattr("tensorflow.profiler.experimental.start", lambda _: None)
    capture.start(0)
    with pytest.raises(tf.errors.UnavailableError):
        capture.close()
    assert signal.getsignal(signal.SIGUSR1) == before


def test_steps_that_an_earlier_start_has_done_are_not_profiled_again() -> None:
    calls: list[Any] = []
    capture = ProfileCapture("logs", ("a.b:1",), (100, 120), lambda *given: calls.append(given))
    capture.start(1000)
    capture.before_loop(1010, report(1010))
    capture.close()
    assert not calls


def test_a_profile_of_this_process_is_a_file_for_tensorboard(
    cluster: Cluster, tmp_path: Path
) -> None:
    capture = ProfileCapture(str(tmp_path), (), (1, 5))
    capture.start(0)
    tf.linalg.matmul(tf.ones((8, 8)), tf.ones((8, 8)))
    capture.before_loop(10, report(10))
    capture.close()
    assert len(list((tmp_path / "plugins" / "profile").glob("*/*.xplane.pb"))) == 1


def test_a_failed_profile_does_not_end_the_training(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def silent(*_: object) -> None:
        raise EndpointError("nobody there")

    capture = ProfileCapture("logs", ("a.b:1",), (1, 5), silent)
    capture.start(0)
    capture.before_loop(10, report(10))
    capture.close()
    assert "profile: nobody there" in caplog.text
    with pytest.raises(EndpointError, match=r"returned no profile in 0\.1 s"):
        trace_workers(["127.0.0.1:1"], "logs", 0.1)


@pytest.mark.parametrize("value", ["5", "5:", ":5", "5:4", "0:4", "a:b", "1:2:3", "²:3"])
def test_another_range_of_steps_is_wrong_input(value: str) -> None:
    with pytest.raises(InputError, match="expected FIRST:LAST"):
        parse_steps(value)
    assert parse_steps("") is None
    assert parse_steps("100:120") == (100, 120)


def test_a_snapshot_shows_the_graph_examples_and_what_loops_and_checkpoints_have_computed(
    cluster: Cluster, bars: Path, tmp_path: Path
) -> None:
    data = open_data(str(bars))
    params = Params(global_batch_size=64, evaluation_batch_size=64, snapshot_interval=4)
    state = create_train_state(cluster, load_model("mnist_cnn"), params, data.manifest, 10)
    summaries = Summaries(str(tmp_path))
    snapshots = ModelSummaries(cluster, params, data, state, summaries)
    snapshots.start(0)
    names = variable_names(state.model)
    for step in (2, 4, 6):
        norms = dict.fromkeys(names, float(step))
        loop = dataclasses.replace(report(step, last_step=30), gradient_norms=norms)
        snapshots.between_loops(step, loop)
        snapshots.copied(step, state.model)
    for _ in range(2):
        snapshots.evaluated(6, "test")
    summaries.close()
    values = read_events(tmp_path)
    assert len(values["graph"]) == 1
    pictures = {tag: each for tag, each in values.items() if tag.startswith("test_examples/")}
    features, labels, _ = next(iter(evaluation_rows(data, params, 1, 0)))
    classes = data.manifest.class_names
    assert list(pictures) == [
        f"test_examples/{number:02} {classes[label] if classes else label}"
        for number, label in enumerate(labels.numpy()[: 64 // cluster.replicas])
    ]
    for (picture,), expected in zip(pictures.values(), features, strict=False):
        width, height, png = tf.make_ndarray(picture.tensor)
        assert (width, height) == (b"28", b"28")
        assert np.array_equal(tf.io.decode_png(png), expected)
    (histogram,) = (tf.make_ndarray(v.tensor) for v in values["weights/conv_1/kernel"])
    counts, edges = np.histogram(state.model.conv_1.kernel.numpy(), 30)
    assert histogram[:, 2].astype(int).tolist() == counts.tolist()
    assert np.append(histogram[:, 0], histogram[-1, 1]) == pytest.approx(edges, abs=1e-6)
    norms_written = {tag for tag in values if tag.startswith("variables/")}
    assert norms_written == {f"variables/gradient_norm/{name}" for name in names}
    assert [
        float(tf.make_ndarray(v.tensor)) for v in values["variables/gradient_norm/dense_2/bias"]
    ] == [4.0]


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
