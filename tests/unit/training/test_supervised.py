"""`fit` hears what the command line hears, and leaves nothing behind in a process that lives on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE
from tpu_training.errors import EXIT_START_AGAIN, InputError, Interrupted
from tpu_training.job.supervision import supervised
from tpu_training.loop.callbacks import Callback, LoopReport, ShutdownRequest

SCRIPT = """
import signal, sys
from tpu_training import Interrupted, fit

try:
    fit(data=sys.argv[1], model_dir=sys.argv[2], epochs=100000, checkpoint_interval=10**6,
        global_batch_size=64, steps_per_loop=5, snapshot_interval=0)
except Interrupted as error:
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    print("caught:", error, flush=True)
    raise
"""


def test_sigterm_saves_the_progress_of_a_program_that_calls_fit(bars: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-u", "-c", SCRIPT, str(bars), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        for line in process.stdout:
            if line.startswith("progress"):
                break
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == EXIT_START_AGAIN, err
    assert "caught: received SIGTERM; step " in out
    assert "training interrupted: received SIGTERM" in out
    assert "Traceback" not in err
    assert len(list((tmp_path / "checkpoints").glob("*.index"))) == 1


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def quiet_signals() -> Iterator[None]:
    """What failed in a process of its own stays watched, as other tests' jobs in this one."""
    handler, bell = signal.signal(signal.SIGTERM, signal.SIG_DFL), signal.set_wakeup_fd(-1)
    yield
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_put_back_in_a_process_that_lives_on(
    quiet_signals: None, fails: bool
) -> None:
    before = open_files(), threading.active_count(), signal.getsignal(signal.SIGUSR1)
    try:
        with supervised() as (_, hang_timer):
            hang_timer.watch(3600.0)
            assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            if fails:
                raise InputError("no good")
    except InputError:
        pass
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
    assert before == (open_files(), threading.active_count(), signal.getsignal(signal.SIGUSR1))


def test_a_sigterm_before_the_training_ends_the_block(quiet_signals: None) -> None:
    with pytest.raises(Interrupted, match="nothing to save"), supervised():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.training
def test_an_end_during_the_last_evaluation_waits_for_what_is_being_saved(
    one_device: Any, quiet_signals: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.training.test_own_step import CLASSES, ROWS, dense, on
    from tpu_training.cluster.cluster import Cluster

    heard, left = list[ShutdownRequest](), list[list[str]]()
    monkeypatch.setattr(ShutdownRequest, "install", lambda self: heard.append(self))
    saved = tmp_path / "checkpoints"
    monkeypatch.setattr(
        Cluster, "finish", lambda _: left.append([each.name for each in saved.glob("*.index")])
    )

    class Last(Callback):
        def between_loops(self, step: int, report: LoopReport) -> None:
            if step == report.last_step:
                heard[0].request("another host has to end")

    given = {"data": (ROWS, CLASSES), "test": (ROWS, CLASSES), "model_dir": str(tmp_path)}
    with pytest.raises(Interrupted, match="another host has to end; start again to resume"):
        on(one_device, model=dense("matrix"), callbacks=[Last()], steps=4, **given)
    assert left == [["ckpt-4.index"]]


def test_a_program_keeps_its_own_handler(quiet_signals: None) -> None:
    heard = list[int]()
    signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    with supervised() as (shutdown, _):
        assert signal.set_wakeup_fd(-1) == -1
        os.kill(os.getpid(), signal.SIGTERM)
    assert heard == [signal.SIGTERM]
    assert not shutdown.requested


def test_a_thread_is_watched_without_signals(quiet_signals: None) -> None:
    watched = list[bool]()

    def run() -> None:
        with supervised() as (_, hang_timer):
            hang_timer.watch(3600.0)
            watched.append(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert watched == [True]
