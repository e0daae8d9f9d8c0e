"""Whole jobs, as processes of their own, on a worker that is reached by gRPC."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from tests.patience import PATIENCE
from tests.unit.training.test_given_data import FUNCTION
from tpu_core.lease import LocalLease
from tpu_training.checkpoints.checkpoints import CheckpointFolder
from tpu_training.errors import DataError, InputError, find_known_error
from tpu_training.job.run import Trainer

pytestmark = pytest.mark.training

StartTraining = Callable[..., "Popen[str]"]

SMALL = (
    "--global_batch_size=64",
    "--evaluation_batch_size=256",
    "--steps_per_loop=5",
    "--snapshot_interval=0",
)
ENDLESS = (*SMALL, "--epochs=100000", "--checkpoint_interval=10")


def finish(process: Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def wait_for(process: Popen[str], words: str) -> str:
    """Read standard output up to a line that begins with `words`."""
    assert process.stdout
    seen = []
    for line in process.stdout:
        seen.append(line)
        if line.startswith(words):
            break
    return "".join(seen)


def test_a_job_trains_over_all_replicas_of_the_worker_and_writes_its_results(
    worker: str, bars: Path, tmp_path: Path, start_training: StartTraining
) -> None:
    code, out, err = finish(
        start_training(
            "train-and-evaluate",
            f"--tpu=grpc://{worker}",
            f"--data={bars}",
            # Relative: it is this process that writes, not the worker with its other folder.
            "--model-dir=.",
            "--epochs=2",
            "--evaluation_interval=10",
            "--profile_steps=11:15",
            *SMALL,
        )
    )
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "loading TensorFlow, which takes a few seconds"
    assert lines[1] == (
        f"cluster: MirroredStrategy over 2 replicas at grpc://{worker}, because the worker of "
        "--tpu has no TPU but 2 CPU devices"
    )
    assert lines[2] == (
        "plan: 2 epochs of 576 examples in batches of 64 are 18 steps; the next line follows "
        "after the first 5, which include compiling the step"
    )
    (times,) = [line for line in lines if line.startswith("time: load ")]
    assert float(times.split()[2]) > 0.0
    # TensorFlow's C++ prints parts of lines while the worker's profile is taken, so a line of ours
    # may begin behind one.
    pattern = r"progress step=(\d+)/18 loss=\d+\.\d{4} examples_per_second=\d+ eta=\d+s$"
    assert re.findall(pattern, out, re.M) == ["5", "10", "15", "18"]
    metrics = json.loads((tmp_path / "metrics.json").read_text())
    assert lines[-1].startswith(f"training finished test_accuracy={metrics['test_accuracy']:.4g} ")
    assert metrics["test_accuracy"] > 0.9
    assert metrics["test_examples"] == 1003
    assert metrics["endpoint"] == f"grpc://{worker}"
    assert metrics["strategy"] == "MirroredStrategy"
    assert (metrics["replicas"], metrics["global_batch_size"], metrics["steps"]) == (2, 64, 18)
    assert metrics["steps_per_second"] > 0
    assert metrics["examples_per_second"] > 0
    assert metrics["validation_examples"] == 64, "a tenth, so that the test set chooses nothing"
    assert (tmp_path / "best" / f"ckpt-{metrics['best_step']}.index").exists()
    assert (tmp_path / "checkpoints" / "ckpt-18.index").exists()
    assert list((tmp_path / "tensorboard").glob("events.*"))
    (profile,) = (tmp_path / "tensorboard" / "plugins" / "profile").glob("*/*.xplane.pb")
    assert profile.stat().st_size > 1000, "the worker's own record of its operations"


def test_the_worker_reads_a_data_function_and_a_short_training_is_not_silent_until_its_end(
    worker: str, tmp_path: Path, start_training: StartTraining
) -> None:
    """Fifteen steps, as the longest loop could have fifty."""
    (tmp_path / "mine.py").write_text(FUNCTION)
    code, out, err = finish(
        start_training(
            "train-and-evaluate",
            f"--tpu=grpc://{worker}",
            *("--data=mine.py", "--model-dir=model", "--epochs=6", "--steps_per_loop=50"),
            *("--global_batch_size=8", "--evaluation_batch_size=8", "--snapshot_interval=0"),
        )
    )
    assert code == 0, err
    assert f"over 2 replicas at grpc://{worker}" in out
    assert re.findall(r"^progress step=(\d+)/15 ", out, re.M) == ["10", "15"]
    metrics = json.loads((tmp_path / "model" / "metrics.json").read_text())
    assert metrics["test_examples"] == 20


def test_a_job_that_was_killed_or_terminated_goes_on_from_its_last_checkpoint(
    worker: str, bars: Path, tmp_path: Path, start_training: StartTraining
) -> None:
    def start_and_signal(number: signal.Signals) -> tuple[int, str, str]:
        process = start_training(
            "train",
            f"--tpu=grpc://{worker}",
            f"--data={bars}",
            f"--model-dir={tmp_path}",
            *ENDLESS,
        )
        seen = wait_for(process, "checkpoint: saved")
        process.send_signal(number)
        code, out, err = finish(process)
        return code, seen + out, err

    assert start_and_signal(signal.SIGKILL)[0] == -signal.SIGKILL
    killed_at = newest(tmp_path)
    code, out, err = start_and_signal(signal.SIGTERM)
    assert code == 75
    assert f"checkpoint: restored {tmp_path}/checkpoints/ckpt-{killed_at}" in out
    assert f"progress step={killed_at + 5}/" in out
    # Where the machine is so busy that it takes longer, the hang timer says it.
    assert "training interrupted: received SIGTERM" in err
    assert newest(tmp_path) > killed_at


def newest(folder: Path) -> int:
    names = (folder / "checkpoints").glob("ckpt-*.index")
    return max(int(name.stem.removeprefix("ckpt-")) for name in names)


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux")
def test_a_full_disk_ends_the_job_and_spares_the_last_checkpoint(
    bars: Path,
    tmp_path: Path,
    start_training: StartTraining,
    run_here: Callable[..., None],
) -> None:
    """The disk is full for files of more than 100 kB from the first checkpoint on."""
    process = start_training("train", f"--data={bars}", f"--model-dir={tmp_path}", *ENDLESS)
    wait_for(process, "checkpoint: saved")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    code, _, err = finish(process)
    assert code == 1
    assert "training failed: the disk is full" in err
    assert "Files that were already complete remain" in err
    run_here("evaluate", f"--data={bars}", f"--model-dir={tmp_path}", *SMALL)
    assert json.loads((tmp_path / "metrics.json").read_text())["test_examples"] == 1003


def test_a_worker_that_hangs_ends_the_job_so_that_it_can_be_started_again(
    worker_process: tuple[str, int], bars: Path, tmp_path: Path, start_training: StartTraining
) -> None:
    """It is stopped, not killed: its connections stay open."""
    address, pid = worker_process
    job = [f"--tpu=grpc://{address}", f"--data={bars}", f"--model-dir={tmp_path}"]
    process = start_training("train", *job, *ENDLESS, "--hang_timeout=15")
    wait_for(process, "checkpoint: saved")
    os.kill(pid, signal.SIGSTOP)
    try:
        code, _, err = finish(process)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert code == 1
    known = find_known_error(err)
    assert known
    assert known.id == "worker-hangs"


def test_corrupt_data_is_wrong_input_and_the_file_is_named(
    bars: Path,
    tmp_path: Path,
    run_here: Callable[..., None],
) -> None:
    copy = tmp_path / "data"
    shutil.copytree(bars, copy)
    path = copy / "bars-train-00000-of-00001.tfrecord"
    content = bytearray(path.read_bytes())
    content[100_000] ^= 255
    path.write_bytes(content)
    job = ("train", f"--data={copy}", f"--model-dir={tmp_path / 'm'}", "--epochs=1", *SMALL)
    with pytest.raises(DataError, match=rf"{path.name}: .*; copy the dataset there again"):
        run_here(*job)


@pytest.mark.parametrize("error", [InputError("the test split is no good"), KeyboardInterrupt()])
def test_what_fails_after_the_last_step_is_told_once_the_best_checkpoint_is_written(
    bars: Path,
    tmp_path: Path,
    run_here: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
) -> None:
    """The folder of the best checkpoint is so slow that the test fails first."""
    failed, begun = threading.Event(), list[str]()
    add, release = CheckpointFolder.add, LocalLease.release
    whole_at_release = list[bool]()

    def slow(folder: CheckpointFolder, *checkpoint: Any) -> str:
        if folder._directory.endswith("best"):
            begun.append("best")
            assert failed.wait(PATIENCE)
        return add(folder, *checkpoint)

    def fail(*_: object) -> None:
        failed.set()
        raise error

    def look(lease: LocalLease) -> None:
        whole_at_release.append((tmp_path / "best/checkpoint").exists())
        release(lease)

    monkeypatch.setattr(CheckpointFolder, "add", slow)
    monkeypatch.setattr(LocalLease, "release", look)
    monkeypatch.setattr(Trainer, "_test", fail)
    job = ("train-and-evaluate", f"--data={bars}", f"--model-dir={tmp_path}", "--epochs=1", *SMALL)
    with pytest.raises(type(error)) as told:
        run_here(*job, "--validation_fraction=0.2")
    assert told.value is error
    assert begun == ["best"]
    assert whole_at_release == [True]


def test_evaluating_without_a_checkpoint_is_wrong_input(
    bars: Path, tmp_path: Path, run_here: Callable[..., None]
) -> None:
    with pytest.raises(InputError, match=r"--model-dir=.*contains no checkpoint to evaluate"):
        run_here("evaluate", f"--data={bars}", f"--model-dir={tmp_path}", *SMALL)
