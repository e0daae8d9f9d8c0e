"""Checkpoints are written behind the training, taken only whole, and go on with the very bits."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from tests.patience import PATIENCE
from tpu_core.lease import LeaseError
from tpu_training.checkpoints import checkpoints as checkpoint_folder
from tpu_training.checkpoints.checkpoints import Checkpoints, Snapshot, host_of
from tpu_training.checkpoints.reader import JobRecord
from tpu_training.data.data_set import DataSet, open_data
from tpu_training.data.manifest import RAW, stored_spec
from tpu_training.errors import CheckpointError, DivergedError, Interrupted, translate
from tpu_training.loop.callbacks import Callback, LoopReport, ShutdownRequest
from tpu_training.loop.state import TrainState, create_train_state
from tpu_training.loop.train import LoopFigures, TrainLoop, run_loop, train
from tpu_training.models.params import Params
from tpu_training.models.registry import ModelDefinition, load_model

if TYPE_CHECKING:
    from tpu_training.cluster.cluster import Cluster

pytestmark = pytest.mark.training

PARAMS = Params(epochs=2, global_batch_size=64, steps_per_loop=5, checkpoint_interval=10)


class Losses(Callback):
    """Collects the loss of each loop."""

    def __init__(self) -> None:
        self.by_step: dict[int, float] = {}

    def between_loops(self, step: int, report: LoopReport) -> None:
        self.by_step[step] = report.loss


class Dense(tf.Module):  # type: ignore[misc]
    """The least that can be trained: a matrix."""

    def __init__(self, inputs: int, classes: int, seed: int) -> None:
        super().__init__()
        self.kernel = tf.Variable(tf.random.stateless_normal((inputs, classes), (seed, 0)) / 99.0)

    def __call__(self, features: tf.Tensor, training: bool) -> tf.Tensor:
        pixels = tf.cast(features, tf.float32) / 255.0
        return tf.reshape(pixels, (-1, self.kernel.shape[0])) @ self.kernel


DENSE = ModelDefinition(
    "dense",
    Params,
    lambda params, spec, seed: Dense(int(np.prod(spec.shape)), spec.classes, seed),
)


@pytest.fixture(scope="module")
def data(bars: Path) -> DataSet:
    return open_data(str(bars))


def new_state(cluster: Cluster, data: DataSet, params: Params = PARAMS) -> TrainState:
    return create_train_state(cluster, DENSE, params, data.manifest, steps=20)


def checkpoints_of(
    cluster: Cluster,
    state: TrainState,
    folder: Path,
    record: JobRecord | None = None,
    keep: int = 3,
) -> Checkpoints:
    return Checkpoints(str(folder), state, record or JobRecord("dense", PARAMS), keep, cluster)


def learn(
    cluster: Cluster, data: DataSet, folder: Path, stop_at: int = 0
) -> tuple[dict[int, float], list[npt.NDArray[np.float32]]]:
    """Go on from the last checkpoint, to the end or to SIGTERM in the loop up to `stop_at`."""
    state = new_state(cluster, data)
    checkpoints = checkpoints_of(cluster, state, folder)
    checkpoints.restore_latest()
    shutdown, losses = ShutdownRequest(), Losses()
    shutdown.requested = bool(stop_at)
    params = dataclasses.replace(PARAMS, steps_per_loop=stop_at or PARAMS.steps_per_loop)
    with pytest.raises(Interrupted) if stop_at else nullcontext():
        train(cluster, params, data, state, checkpoints, [losses], shutdown)
    variables = [*state.model.variables, *tf.nest.flatten(state.optimizer.slots)]
    return losses.by_step, [variable.numpy() for variable in variables]


def test_a_resumed_job_is_bit_exact_on_one_device(
    one_device: Cluster, data: DataSet, tmp_path: Path
) -> None:
    losses, weights = learn(one_device, data, tmp_path / "whole")
    learn(one_device, data, tmp_path / "halves", stop_at=5)
    rest, resumed = learn(one_device, data, tmp_path / "halves")
    assert list(losses) == [5, 10, 15, 20]
    assert rest == {step: losses[step] for step in (10, 15, 20)}
    assert all(np.array_equal(a, b) for a, b in zip(weights, resumed, strict=True))


def test_a_job_continues_on_the_same_curve_with_another_number_of_replicas(
    cluster: Cluster, one_device: Cluster, data: DataSet, tmp_path: Path
) -> None:
    losses, weights = learn(one_device, data, tmp_path / "whole")
    learn(one_device, data, tmp_path / "halves", stop_at=5)
    rest, resumed = learn(cluster, data, tmp_path / "halves")
    assert [rest[step] for step in (10, 15, 20)] == pytest.approx(
        [losses[step] for step in (10, 15, 20)], rel=1e-4
    )
    assert all(a == pytest.approx(b, abs=1e-4) for a, b in zip(weights, resumed, strict=True))


def test_a_checkpoint_holds_the_state_of_its_step_while_training_continues(
    cluster: Cluster, data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = new_state(cluster, data)
    goes_on = threading.Event()
    write = tf.train.CheckpointManager.save

    def slow(self: Any, *arguments: Any, **options: Any) -> str:
        assert goes_on.wait(PATIENCE)
        path: str = write(self, *arguments, **options)
        return path

    monkeypatch.setattr(tf.train.CheckpointManager, "save", slow)
    with checkpoints_of(cluster, state, tmp_path) as checkpoints:
        before = state.model.kernel.numpy()
        checkpoints.save(1)
        state.model.kernel.assign(tf.zeros_like(before))
        assert not (tmp_path / "checkpoints" / "ckpt-1.index").exists()
        goes_on.set()
    checkpoints.restore_latest()
    assert np.array_equal(state.model.kernel.numpy(), before)


def test_a_save_waits_for_a_copy_on_the_devices_own_host_and_for_no_network(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    tpu = "/job:worker/replica:0/task:1/device:TPU:3"
    assert host_of(tpu) == "/job:worker/replica:0/task:1/device:CPU:0"
    assert host_of(tpu.replace("TPU", "CPU")) == ""
    host = "/job:localhost/replica:0/task:0/device:CPU:5"
    monkeypatch.setattr("tpu_training.checkpoints.checkpoints.host_of", lambda device: host)
    with tf.device("/cpu:3"):
        variable = tf.Variable([1.0, 2.0])
    snapshot = Snapshot(tf.train.Checkpoint(variable=variable), cluster)
    assert snapshot.take()
    assert {value.backing_device for value in snapshot._values} == {host}
    assert snapshot.checkpoint.variable.numpy().tolist() == [0.0, 0.0]
    variable.assign([3.0, 4.0])
    snapshot.fill()
    assert snapshot.checkpoint.variable.numpy().tolist() == [1.0, 2.0]
    assert snapshot.checkpoint.variable.device.endswith("CPU:0")
    assert snapshot._values == []


def test_a_checkpoint_that_could_not_be_written_is_an_error_at_the_next_one_and_at_the_end(
    cluster: Cluster, data: DataSet, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").write_text("a file in the way")
    checkpoints = checkpoints_of(cluster, new_state(cluster, data), tmp_path)
    checkpoints.save(1)
    with pytest.raises(tf.errors.OpError):
        checkpoints.save(2)
    with pytest.raises(tf.errors.OpError), checkpoints:
        checkpoints.save(3)
    checkpoints.save(4)
    with pytest.raises(KeyError), checkpoints:
        raise KeyError("the first")


def test_only_the_last_ones_are_kept_also_after_a_restart(
    cluster: Cluster, data: DataSet, tmp_path: Path
) -> None:
    state = new_state(cluster, data)
    for steps in ((1, 2), (3, 4)):
        with checkpoints_of(cluster, state, tmp_path, keep=2) as checkpoints:
            for step in steps:
                checkpoints.save(step)
    kept = {path.stem for path in (tmp_path / "checkpoints").glob("*.index")}
    assert kept == {"ckpt-3", "ckpt-4"}


def test_a_checkpoint_that_was_cut_off_while_copying_is_ignored(
    cluster: Cluster, data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = checkpoint_folder._copy

    def full(source: str, target: str) -> None:
        if target.endswith("ckpt-2.index"):
            raise tf.errors.ResourceExhaustedError(None, None, "disk full")
        copy(source, target)

    monkeypatch.setattr(checkpoint_folder, "_copy", full)
    checkpoints = checkpoints_of(cluster, new_state(cluster, data), tmp_path)
    checkpoints.save(1)
    checkpoints.save(2)
    with pytest.raises(tf.errors.ResourceExhaustedError):
        checkpoints.wait()
    assert checkpoints.restore_latest() == f"{tmp_path}/checkpoints/ckpt-1"
    monkeypatch.undo()
    checkpoints.save(2)
    checkpoints.wait()
    assert checkpoints.restore_latest() == f"{tmp_path}/checkpoints/ckpt-2"


def test_partial_checkpoints_of_a_killed_trainer_are_deleted(
    one_device: Cluster, data: DataSet, tmp_path: Path
) -> None:
    state = new_state(one_device, data)
    with checkpoints_of(one_device, state, tmp_path) as checkpoints:
        checkpoints.save(5)
        checkpoints.wait()
        checkpoints.save(7)
    folder = tmp_path / "checkpoints"
    (folder / "ckpt-7.index").unlink()
    (folder / "mine.data-of-my-own").touch()
    with checkpoints_of(one_device, state, tmp_path) as checkpoints:
        checkpoints.save(9)
    names = {path.name for path in folder.iterdir() if ".data-" in path.name}
    expected = {f"ckpt-{step}.data-00000-of-00001" for step in (5, 9)}
    assert names == expected | {"mine.data-of-my-own"}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
def test_a_full_disk_is_reported_and_leaves_no_part_of_the_checkpoint(
    cluster: Cluster, data: DataSet, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    checkpoints = checkpoints_of(cluster, new_state(cluster, data), tmp_path)
    checkpoints.save(1)
    checkpoints.wait()
    (folder / "ckpt-2.index").symlink_to("/dev/full")
    checkpoints.save(2)
    with pytest.raises(tf.errors.ResourceExhaustedError) as caught:
        checkpoints.wait()
    assert "the disk is full" in str(translate(caught.value))
    assert not list(folder.glob("ckpt-2.*"))
    assert checkpoints.restore_latest() == f"{folder}/ckpt-1"


def test_a_bucket_gets_whole_files_under_their_final_names_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a bucket each look costs a call and a rename is a copy."""
    for name in ("rename", "copy", "exists", "stat", "isdir"):
        monkeypatch.delattr(tf.io.gfile, name)
    directory = "ram://bucket/checkpoints"
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    for keep, steps in ((2, (1, 2, 3)), (1, (3, 4))):
        folder = checkpoint_folder.CheckpointFolder(directory, keep, lambda: None)
        for step in steps:
            checkpoint.variable.assign(step)
            assert folder.add(checkpoint, step, None) == f"{directory}/ckpt-{step}"
        kept = [f"ckpt-{step}" for step in steps[-keep:]]
        files = [f"{name}.{end}" for name in kept for end in ("data-00000-of-00001", "index")]
        assert sorted(tf.io.gfile.listdir(directory)) == ["checkpoint", *files]
        latest = tf.train.latest_checkpoint(directory)
        assert latest == f"{directory}/{kept[-1]}"
        checkpoint.restore(latest)
        assert float(checkpoint.variable) == steps[-1]


def test_a_job_that_lost_its_lease_neither_writes_nor_removes_files(
    tmp_path: Path,
) -> None:
    files = ["checkpoint", "ckpt-1.data-00000-of-00001", "ckpt-1.index"]
    checkpoint = tf.train.Checkpoint(variable=tf.Variable(0.0))
    allowed = iter([True] * 4 + [False] * 9)

    def confirm() -> None:
        if not next(allowed):
            raise LeaseError("process 12 on vm-b has taken it over")

    folder = checkpoint_folder.CheckpointFolder(str(tmp_path), 1, confirm)
    folder.add(checkpoint, 1, None)
    with pytest.raises(LeaseError):
        folder.add(checkpoint, 2, None)
    # What was under way stays: by now a file of this name may be the other's.
    assert sorted(os.listdir(tmp_path)) == [*files, "ckpt-2.data-00000-of-00001"]
    assert tf.train.latest_checkpoint(str(tmp_path)) == f"{tmp_path}/ckpt-1"


class Notice(Callback):
    """Gives notice in the loop that ends at a step, and measures loops."""

    def __init__(self, shutdown: ShutdownRequest, step: int) -> None:
        self.shutdown, self.step = shutdown, step
        self.loops: list[int] = []
        self.saved: list[int] = []

    def between_loops(self, step: int, report: LoopReport) -> None:
        self.loops.append(report.count)
        if report.checkpoint_seconds:
            self.saved.append(step)
        if step == self.step:
            self.shutdown.request_save()


def test_a_maintenance_notice_saves_at_the_end_of_the_loop_and_training_continues(
    one_device: Cluster, data: DataSet, tmp_path: Path
) -> None:
    state, shutdown = new_state(one_device, data), ShutdownRequest()
    checkpoints = checkpoints_of(one_device, state, tmp_path)
    params = dataclasses.replace(PARAMS, checkpoint_interval=0)
    notice = Notice(shutdown, 5)
    train(one_device, params, data, state, checkpoints, [notice], shutdown)
    saved = {path.stem for path in (tmp_path / "checkpoints").glob("*.index")}
    assert saved == {"ckpt-10", "ckpt-20"}
    assert notice.saved == [10, 20], "a ledger is written for each"
    assert checkpoints.saved_step == 20
    again = checkpoints_of(one_device, new_state(one_device, data), tmp_path)
    again.restore_latest()
    assert again.saved_step == 20
    assert again.record.history.starts == 2


def test_a_host_for_which_another_one_saves_does_not_know_what_is_saved(
    one_device: Cluster, data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = new_state(one_device, data)
    with checkpoints_of(one_device, state, tmp_path) as checkpoints:
        checkpoints.save(1)
    assert checkpoints.saved_step == 1
    monkeypatch.setattr(type(one_device), "leads", False)
    others = checkpoints_of(one_device, state, tmp_path)
    assert others.restore_latest()
    assert others.saved_step is None


def test_loops_of_slow_steps_end_early_enough_to_hear_a_notice(
    one_device: Cluster, data: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step takes two seconds, by a clock that the test sets."""
    seconds = 0.0

    def slow(cluster: Cluster, loop: TrainLoop, count: int) -> LoopFigures:
        nonlocal seconds
        seconds += 2.0 * count
        return run_loop(cluster, loop, count)

    monkeypatch.setattr("tpu_training.loop.train.run_loop", slow)
    time = SimpleNamespace(monotonic=lambda: seconds)
    monkeypatch.setattr("tpu_training.loop.train.time", time)
    state, shutdown = new_state(one_device, data), ShutdownRequest()
    notice = Notice(shutdown, 0)
    params = dataclasses.replace(PARAMS, epochs=6, steps_per_loop=20, checkpoint_interval=0)
    checkpoints = checkpoints_of(one_device, state, tmp_path)
    train(one_device, params, data, state, checkpoints, [notice], shutdown)
    assert notice.loops == [10, 10, *[1] * 40]


def test_weights_with_nan_are_not_saved(cluster: Cluster, data: DataSet, tmp_path: Path) -> None:
    state = new_state(cluster, data)
    with checkpoints_of(cluster, state, tmp_path) as checkpoints:
        checkpoints.save(1)
        state.model.kernel.assign(tf.fill(state.model.kernel.shape, np.inf))
        with pytest.raises(DivergedError, match="no longer finite at step 2"):
            checkpoints.save(2)
    assert not (tmp_path / "checkpoints" / "ckpt-2.index").exists()


def test_weights_are_saved_even_if_their_sum_is_too_large_for_their_type(cluster: Cluster) -> None:
    variable = tf.Variable([3e38, 3e38])
    snapshot = Snapshot(tf.train.Checkpoint(variable=variable), cluster)
    assert snapshot.take()
    variable.assign([3e38, np.nan])
    assert not snapshot.take()


def test_the_best_one_is_kept_with_its_metric_also_over_a_restart(
    cluster: Cluster, data: DataSet, tmp_path: Path
) -> None:
    state = new_state(cluster, data)
    with checkpoints_of(cluster, state, tmp_path) as first:
        first.save(1)
        first.keep_best(1, {"accuracy": 0.5, "loss": 1.0})
        first.keep_best(2, {"accuracy": 0.7, "loss": 0.5})
    with checkpoints_of(cluster, state, tmp_path) as second:
        second.restore_latest()
        best = second.keep_best(3, {"accuracy": 0.6, "loss": 0.4})
    assert best == {"step": 2, "accuracy": 0.7, "loss": 0.5}
    assert [path.stem for path in (tmp_path / "best").glob("*.index")] == ["ckpt-2"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data, index: index.write_bytes(index.read_bytes()[:50]),
        lambda data, index: data.write_bytes(data.read_bytes()[:1000]),
        lambda data, index: data.unlink(),
        lambda data, index: data.write_bytes(data.read_bytes()[:-8] + b"damaged!"),
    ],
    ids=["short index", "short data", "no data", "changed data"],
)
def test_a_half_written_checkpoint_is_skipped(
    cluster: Cluster, data: DataSet, tmp_path: Path, damage: Callable[[Path, Path], object]
) -> None:
    state = new_state(cluster, data)
    with checkpoints_of(cluster, state, tmp_path) as checkpoints:
        for step in (1, 2):
            state.step.assign(step)
            checkpoints.save(step)
    folder = tmp_path / "checkpoints"
    damage(folder / "ckpt-2.data-00000-of-00001", folder / "ckpt-2.index")
    assert checkpoints.restore_latest() == f"{folder}/ckpt-1"
    assert int(state.step.numpy()) == 1


def test_a_checkpoint_of_another_model_is_refused_with_the_differences(
    cluster: Cluster, data: DataSet, tmp_path: Path
) -> None:
    with checkpoints_of(cluster, new_state(cluster, data), tmp_path) as checkpoints:
        checkpoints.save(1)
    smaller = dataclasses.replace(data.manifest, spec=stored_spec(RAW, (14, 14, 1), 10))
    sgd = dataclasses.replace(PARAMS, optimizer="sgd", momentum=0.5)
    other = create_train_state(cluster, DENSE, PARAMS, smaller, steps=20)
    with pytest.raises(CheckpointError, match="ckpt-1 belongs to another model"):
        checkpoints_of(cluster, other, tmp_path).restore_latest()
    for record, words in (
        (JobRecord("bert", PARAMS), "trained with model=dense;"),
        (JobRecord("dense", sgd), "trained with momentum=0.9, optimizer=adam;"),
    ):
        state = new_state(cluster, data, sgd)
        with pytest.raises(CheckpointError, match=words):
            checkpoints_of(cluster, state, tmp_path, record).restore_latest()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text.replace('"format": 1', '"format": 2'), "its format is 2"),
        (lambda text: text.replace('"starts": 1', '"starts": "one"'), "history.starts is 'one'"),
        (lambda text: "{", "it is not JSON"),
    ],
)
def test_the_record_of_a_job_that_is_damaged_or_of_another_release_is_refused(
    cluster: Cluster,
    data: DataSet,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[str], str],
    why: str,
) -> None:
    state = new_state(cluster, data)
    with monkeypatch.context() as patch, checkpoints_of(cluster, state, tmp_path) as checkpoints:
        whole = JobRecord.serialize
        patch.setattr(JobRecord, "serialize", lambda self: change(whole(self)))
        checkpoints.save(1)
    with pytest.raises(
        CheckpointError, match=f"ckpt-1: the record of its training can't be read: {why}"
    ):
        checkpoints_of(cluster, state, tmp_path).restore_latest()


def test_parameters_that_changed_since_the_checkpoint_are_logged(
    cluster: Cluster, data: DataSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = new_state(cluster, data)
    with checkpoints_of(cluster, state, tmp_path) as checkpoints:
        checkpoints.save(1)
    changed = dataclasses.replace(PARAMS, learning_rate=0.5, keep_checkpoints=9)
    checkpoints_of(cluster, state, tmp_path, JobRecord("dense", changed)).restore_latest()
    assert (
        "was trained with learning_rate=0.004; training continues with the new values"
        in caplog.text
    )


def test_the_checkpoint_is_readable_by_plain_tensorflow(
    cluster: Cluster, data: DataSet, tmp_path: Path
) -> None:
    model = load_model("mnist_cnn")
    state = create_train_state(cluster, model, PARAMS, data.manifest, steps=20)
    with checkpoints_of(cluster, state, tmp_path) as checkpoints:
        checkpoints.save(1)
    fresh = model.create_model(
        dataclasses.replace(PARAMS, precision="float32"), data.manifest.spec, 99
    )
    latest = tf.train.latest_checkpoint(str(tmp_path / "checkpoints"))
    tf.train.Checkpoint(model=fresh).restore(latest).expect_partial()
    assert np.array_equal(fresh.dense_1.kernel.numpy(), state.model.dense_1.kernel.numpy())
