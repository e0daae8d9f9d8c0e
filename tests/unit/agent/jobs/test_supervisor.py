"""What the supervisor of a try does where its machine may have lost the TPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.patience import until
from tests.unit.agent.jobs.memory import Bucket, Clock, MemoryStore
from tpu_agent.jobs.attempt import Attempt, Supervisor, any_running, now
from tpu_agent.jobs.queue import Outcome, Spec
from tpu_core.bucket import Bucket as Store
from tpu_core.lease import SURE

pytestmark = pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux")


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    made = Attempt(tmp_path / "one-1")
    ran = f"echo ran >{tmp_path}/ran"
    content = {"job": "one", "number": 1, "bucket": "b", "spec": vars(Spec(ran)), "variables": {}}
    made.prepare(content)
    return made


def start(attempt: Attempt, folder: Path) -> None:
    """Start a supervisor that runs for ten minutes."""
    program = folder / "agent.py"
    program.write_text("import time; time.sleep(600)")
    attempt.start(program)


def outcome(attempt: Attempt) -> Outcome:
    return Supervisor(attempt, lambda _: MemoryStore(Bucket(Clock()))).run()


def test_it_begins_nothing_on_a_lease_that_is_old_already(attempt: Attempt, tmp_path: Path) -> None:
    attempt.beat(now() - SURE - 10)
    assert outcome(attempt).why == "preempted"
    assert not (tmp_path / "ran").exists()


def test_it_runs_the_command_on_a_fresh_one(attempt: Attempt, tmp_path: Path) -> None:
    attempt.beat(now())
    assert outcome(attempt) == Outcome("exited", 0)
    assert (tmp_path / "ran").read_text() == "ran\n"


def test_an_artifact_whose_name_is_no_text_takes_nothing_of_the_result(tmp_path: Path) -> None:
    spec = Spec("touch $ARTIFACTS_DIR/$(printf '\\377')")
    content = {"job": "two", "number": 1, "bucket": "b", "spec": vars(spec), "variables": {}}
    made = Attempt(tmp_path / "two-1")
    made.prepare(content)
    store = Store("b", lambda *_: (200, {}, b"{}"))
    assert Supervisor(made, lambda _: store).run() == Outcome("exited", 0)


def test_what_names_a_file_whose_name_is_no_text_is_told_nevertheless(attempt: Attempt) -> None:
    attempt.finish(Outcome("setup", 1, "\udcff is outside"))
    assert attempt.ended() == Outcome("setup", 1, "\\udcff is outside")


def test_whoever_ends_a_try_also_kills_what_hides_from_it(
    attempt: Attempt, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = []
    monkeypatch.setattr("tpu_agent.jobs.attempt.kill_all", lambda: killed.append(1))
    assert attempt.kill()
    assert killed


def test_a_second_supervisor_of_the_same_try_does_nothing(attempt: Attempt) -> None:
    assert attempt.claim()
    assert not attempt.claim()


def test_a_machine_runs_a_job_while_the_supervisor_lives(attempt: Attempt, tmp_path: Path) -> None:
    assert not any_running(tmp_path)
    start(attempt, tmp_path)
    assert any_running(tmp_path)
    # Another runner knows it, too, and ends it with all that it has started.
    other = Attempt(attempt.folder)
    assert other.is_running()
    assert other.kill()
    # Its files are closed a moment after its memory is gone.
    until(lambda: not any_running(tmp_path))


def test_a_process_that_becomes_another_program_meanwhile_is_killed(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(attempt, tmp_path)
    # The first look meets it between the two programs, when it has no environment.
    looks, others = [set[int]()], attempt._others
    monkeypatch.setattr(attempt, "_others", lambda: looks.pop() if looks else others())
    assert attempt.kill()
    until(lambda: not any_running(tmp_path))


def test_what_the_kernel_does_not_end_holds_no_runner_up(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(attempt, tmp_path)
    with monkeypatch.context() as patched:
        # As for a process that waits in a driver.
        patched.setattr("os.kill", lambda *_: None)
        assert not attempt.kill(0.1)
    assert attempt.kill()
