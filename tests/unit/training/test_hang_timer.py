"""A process that TensorFlow does not come back to is ended all the same."""

from __future__ import annotations

import subprocess
import sys
from subprocess import Popen

import pytest

from tests.patience import PATIENCE
from tpu_training.job.supervision import HangTimer
from tpu_training.loop.callbacks import LoopReport

# Key stretching: C code that lets other threads run and comes back after hours, as TensorFlow's
# waiting for a worker.
# It says so as soon as other threads run, which is not before.
STUCK = """
import hashlib
import sys
import threading
from tpu_training.loop.callbacks import ShutdownRequest
from tpu_training.job.supervision import HangTimer
ShutdownRequest().install()
HangTimer(grace_seconds=0.2).install()
begin = threading.Event()
say = threading.Thread(target=lambda: begin.wait() and print("stuck", flush=True), daemon=True)
say.start()
sys.setswitchinterval(3600)
begin.set()
hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""


class Time:
    """A clock that is set, and how the process would have ended."""

    def __init__(self) -> None:
        self.now = 100.0
        self.endings: list[tuple[str, int]] = []

    def timer(self) -> HangTimer:
        return HangTimer(lambda *ending: self.endings.append(ending), clock=lambda: self.now)


def test_the_process_ends_when_there_was_no_progress_for_the_timeout() -> None:
    time = Time()
    timer = time.timer()
    timer.watch(10.0, first=30.0)
    time.now = 139.0
    assert not timer.look()
    timer.reset()
    time.now = 148.0
    assert not timer.look()
    time.now = 149.0
    assert timer.look()
    ((message, code),) = time.endings
    assert code == 1
    assert "no loop of steps was finished for 10 s (--hang_timeout)" in message
    assert "continues from its last checkpoint" in message


def test_without_a_timeout_it_waits_for_ever() -> None:
    time = Time()
    timer = time.timer()
    timer.watch(0.0, first=30.0)
    timer.reset()
    time.now = 1e9
    assert not timer.look()


@pytest.mark.parametrize(
    ("saved", "code", "says"),
    [
        (30, 75, "all finished steps are saved"),
        (25, 1, "; 5 steps after the last checkpoint, of step 25, are lost"),
        # Another host knows what is saved.
        (None, 1, "; steps after the last checkpoint, which host 0 saves, are lost"),
    ],
)
def test_exit_code_75_means_that_every_finished_step_is_saved(
    saved: int | None, code: int, says: str
) -> None:
    time = Time()
    timer = time.timer()
    timer.saved_step = lambda: saved
    timer.between_loops(30, LoopReport(30, 90, 5, 0.5, {}, 0.1, 2.0, 0.0))
    timer._killed_at = time.now
    assert timer.look()
    ((message, ended),) = time.endings
    assert ended == code
    assert says in message


def test_before_the_first_loop_is_over_there_is_nothing_to_lose() -> None:
    time = Time()
    timer = time.timer()
    timer._killed_at = time.now
    assert timer.look()
    assert time.endings[0][1] == 75


def test_sigterm_ends_a_process_that_is_stuck_in_c_code_when_its_grace_is_over() -> None:
    with Popen(
        [sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "stuck\n"
        process.terminate()
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 75
    assert err.startswith("training interrupted: received SIGTERM")
