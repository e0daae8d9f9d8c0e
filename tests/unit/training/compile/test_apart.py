"""Programs are made in a process of their own."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.patience import until
from tpu_training.compile import programs
from tpu_training.compile.answer import Program
from tpu_training.errors import InputError, LoweringError, ParamsError, TrainingError

# Elsewhere there is no compiler that a program would be made for.
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="libtpu exists for Linux only")


@pytest.fixture(autouse=True)
def tensorflow_does_not_run_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "_tensorflow_runs", lambda: False)
    monkeypatch.setattr(programs, "import_tensorflow", lambda: None)


def test_a_program_is_made_by_a_child_process_that_ends() -> None:
    made = programs.make_in_child(lambda: Program("train", str(os.getpid()).encode(), "hlo"))
    assert int(made.hlo) != os.getpid()
    assert multiprocessing.active_children() == []


def test_the_first_process_loads_tensorflow_alone_and_later_ones_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loaded_in: list[int] = []

    def load() -> None:
        if not loaded_in:
            loaded_in.append(os.getpid())

    def make() -> Program:
        return Program("train", str(loaded_in[0]).encode(), "hlo")

    monkeypatch.setattr(programs, "import_tensorflow", load)
    monkeypatch.setattr(programs, "_made", itertools.count())
    assert int(programs.make_in_child(make).hlo) != os.getpid()
    assert loaded_in == []
    assert [int(programs.make_in_child(make).hlo) for _ in range(2)] == [os.getpid()] * 2


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (LoweringError("no AsString"), LoweringError),
        (InputError("no such file"), InputError),
        (ParamsError(["a", "b"]), InputError),
        (ZeroDivisionError("by 0"), InputError),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_an_error_comes_back_as_what_a_user_can_act_on(
    raised: Exception, expected: type[Exception]
) -> None:
    def fail() -> Program:
        raise raised

    with pytest.raises(expected) as caught:
        programs.make_in_child(fail)
    assert type(caught.value) is expected
    assert str(raised) in str(caught.value)


def test_a_process_that_is_killed_is_an_error_that_says_so() -> None:
    def die() -> Program:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    with pytest.raises(TrainingError, match="exit code -9 while it created the program"):
        programs.make_in_child(die)


def test_the_compiler_ends_when_its_command_is_killed(tmp_path: Path) -> None:
    number = tmp_path / "number"
    code = f"""
import os, pathlib, time
from tpu_training.compile import programs
programs._tensorflow_runs = lambda: False
programs.import_tensorflow = lambda: None
def make():
    pathlib.Path({str(number)!r}).write_text(str(os.getpid()))
    time.sleep(600)
programs.make_in_child(make)
"""
    with subprocess.Popen([sys.executable, "-c", code]) as command:
        while not number.exists() or not number.read_text():
            assert command.poll() is None
            time.sleep(0.01)
        command.kill()
    status = Path("/proc") / number.read_text() / "status"
    until(lambda: not runs(status), "the child has ended")


def runs(status: Path) -> bool:
    try:
        return "(zombie)" not in status.read_text()
    except OSError:
        return False


def test_a_process_with_tensorflow_running_does_not_fork(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(programs, "_tensorflow_runs", lambda: True)
    made = programs.make_in_child(lambda: Program("train", str(os.getpid()).encode(), "hlo"))
    assert int(made.hlo) == os.getpid()
