"""A program of one's own has one writer for its model directory, and a ledger of its time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tpu_core
from tpu_core import ledger
from tpu_core.ledger import FINISHED, Beginning, Entry, File, parse_entry, read
from tpu_training.goodput.account import account

EXAMPLE = Path(__file__).parents[3] / "examples/jax/resume.py"
# It sends itself a signal when so many steps are done.
SIGNALLED = """
import os, runpy, signal, sys, tpu_core
from tpu_core import ledger
ledger._WRITE_SECONDS = 0.0
example, number, at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
step = tpu_core.Run.step
def signalled(self, done):
    asked = step(self, done)
    if done == at:
        os.kill(os.getpid(), number)
    return asked
tpu_core.Run.step = signalled
runpy.run_path(example, run_name="__main__")
"""


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(ledger, "Beginning", lambda: Beginning(clock=made))
    return made


def entries(model_dir: Path) -> list[Entry]:
    return [
        entry
        for path in sorted(model_dir.glob("ledger/*.json"))
        if (entry := parse_entry(path.read_text()))
    ]


def test_each_second_of_a_run_has_its_part(tmp_path: Path, clock: Clock) -> None:
    with tpu_core.run(str(tmp_path)) as run:
        clock.now += 5
        run.step(20)
        clock.now += 3
        run.step(21)
        clock.now += 2
        run.step(22)
        with run.saving():
            clock.now += 4
        clock.now += 1
    (entry,) = entries(tmp_path)
    assert (entry.first_step, entry.last_step, entry.ending) == (20, 22, FINISHED)
    spent = {part: seconds for part, seconds in entry.seconds.items() if seconds}
    assert spent == {"restore": 5, "start": 3, "compute": 2, "checkpoint": 4, "idle": 1}
    assert entry.duration == 15


def test_a_step_writes_nothing_but_once_a_minute(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = list[float]()
    monkeypatch.setattr(tpu_core._Files, "write", lambda *_: written.append(clock.now))
    with tpu_core.run(str(tmp_path)) as run:
        for step in range(151):
            run.step(step)
            clock.now += 1
    assert written == [100, 160, 220, 251]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_in_the_block_is_the_ending_and_passes_through(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def program() -> None:
        with tpu_core.run(str(tmp_path)) as run:
            run.step(0)
            raise error

    with pytest.raises(error):
        program()
    assert [entry.ending for entry in entries(tmp_path)] == [f"failed: {error.__name__}"]


def test_after_sigterm_a_program_saves_and_ends_to_be_started_again(tmp_path: Path) -> None:
    def program() -> None:
        with tpu_core.run(str(tmp_path)) as run:
            run.step(0)
            assert not run.step(1)
            os.kill(os.getpid(), signal.SIGTERM)
            assert run.step(2)
            run.save("state", b"of step 2")
            pytest.fail("it runs after its checkpoint")

    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 75
    assert (tmp_path / "state").read_bytes() == b"of step 2"
    assert [(one.last_step, one.ending) for one in entries(tmp_path)] == [(2, "received SIGTERM")]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_program_that_saves_nothing_after_sigterm_ends_one_step_later(tmp_path: Path) -> None:
    def program() -> None:
        with tpu_core.run(str(tmp_path)) as run:
            run.step(0)
            os.kill(os.getpid(), signal.SIGTERM)
            run.step(1)
            run.step(2)
            pytest.fail("it runs on")

    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 75


def test_sigterm_before_the_first_step_ends_the_program_at_once(tmp_path: Path) -> None:
    def program() -> None:
        with tpu_core.run(str(tmp_path)):
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("it waits for a step")

    with pytest.raises(SystemExit) as ended:
        program()
    assert ended.value.code == 75


def test_a_program_that_hears_sigterm_itself_still_does(tmp_path: Path) -> None:
    heard = list[int]()
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        with tpu_core.run(str(tmp_path)) as run:
            os.kill(os.getpid(), signal.SIGTERM)
            assert not run.step(0)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]


def test_a_start_that_failed_to_restore_costs_no_step_of_those_before(tmp_path: Path) -> None:
    with tpu_core.run(str(tmp_path)) as run:
        run.step(0)
        run.step(1)
    with pytest.raises(ValueError, match="damaged"), tpu_core.run(str(tmp_path)) as run:
        raise ValueError("damaged")
    files = [File(str(path), path.read_text()) for path in tmp_path.glob("ledger/*")]
    assert account(read(files)).steps == 1


def test_a_run_knows_how_far_the_start_before_it_came(tmp_path: Path) -> None:
    with tpu_core.run(str(tmp_path)) as run:
        assert run.done == 0
        run.step(0)
        run.step(7)
    (tmp_path / "ledger/tpus-20260101T000000Z-vm.json").write_text("{}")
    (tmp_path / "ledger/29991231T000000Z-1.json").write_text("damaged")
    with tpu_core.run(str(tmp_path)) as run:
        assert run.done == 7


def test_a_second_writer_is_refused_and_writes_nothing(tmp_path: Path) -> None:
    who = rf"process {os.getpid()} on .* trains there; let it finish"
    with tpu_core.run(str(tmp_path)) as run:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit, match=who), tpu_core.run(str(tmp_path)):
            pytest.fail("two write it")
        assert sorted(tmp_path.rglob("*")) == before
        run.step(0)


def test_the_other_hosts_of_a_slice_read_and_write_nothing(tmp_path: Path) -> None:
    with tpu_core.run(str(tmp_path)) as run:
        run.step(0)
        run.save("state", b"of step 0")
        before = sorted(tmp_path.rglob("*"))
        with tpu_core.run(str(tmp_path), writes=False) as other:
            assert other.read("state") == b"of step 0"
            other.step(0)
            other.save("state", b"another")
        assert sorted(tmp_path.rglob("*")) == before
        assert run.read("state") == b"of step 0"


@pytest.mark.parametrize("model_dir", ["", "s3://bucket/model", "gs://bucket", "gs://bucket//"])
def test_what_is_no_model_directory_is_named_and_nothing_is_created(
    model_dir: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = f"model_dir='{model_dir}': it is neither a local folder nor gs://BUCKET/FOLDER"
    with pytest.raises(SystemExit, match=refused), tpu_core.run(model_dir):
        pytest.fail("it runs")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    where = f"{tmp_path}/file/model"
    with pytest.raises(SystemExit, match=f"model_dir={where}: "), tpu_core.run(where):
        pytest.fail("it runs")


def test_a_bucket_without_credentials_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing listens on this port of loopback.
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    refused = "model_dir=gs://b/m: no Google credentials found .*service account"
    with pytest.raises(SystemExit, match=refused), tpu_core.run("gs://b/m"):
        pytest.fail("it runs")


@pytest.fixture
def start(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    def start(number: int = 0, at: int = -1) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", SIGNALLED, EXAMPLE, str(number), str(at)],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "MODEL_DIR": str(tmp_path)},
            capture_output=True,
            check=False,
            text=True,
        )

    return start


@pytest.mark.slow
def test_a_killed_program_of_jax_resumes_and_its_ledger_has_what_was_lost(
    tmp_path: Path, start: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    assert start(signal.SIGKILL, 73).returncode == -signal.SIGKILL
    ended = start()
    assert ended.stdout.splitlines()[0] == "step 50; the start before came to step 73"
    assert ended.returncode == 0, ended.stderr
    total = account(read(File(str(path), path.read_text()) for path in tmp_path.glob("ledger/*")))
    assert (total.starts, total.steps, total.lost_steps) == (2, 200, 23)
    assert total.seconds["lost"] > 0
    assert total.seconds["away"] > 0
    assert "the trainer was killed, or could not write" in total.causes


@pytest.mark.slow
def test_a_program_of_jax_that_gets_sigterm_loses_no_step(
    tmp_path: Path, start: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    stopped = start(signal.SIGTERM, 73)
    assert stopped.returncode == 75
    assert stopped.stderr == "received SIGTERM; start again to resume\n"
    # The signal came after that step, so one more is done.
    assert start().stdout.startswith("step 74; the start before came to step 74\n")


@pytest.mark.slow
def test_a_second_program_of_jax_is_refused_with_one_line(
    tmp_path: Path, start: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    with tpu_core.run(str(tmp_path)):
        refused = start()
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert f"process {os.getpid()} on" in line
