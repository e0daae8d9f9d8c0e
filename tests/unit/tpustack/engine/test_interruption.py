"""Nothing of the engine is left when a command is told to end; a stand-in plays the engine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tpustack.engine import toolchain

# It has a provider with a session of its own, and ends when its operation is done.
ENGINE = f"""#!{sys.executable}
import signal, subprocess, sys, time
if sys.argv[1:] == ["version"]:
    sys.exit(print("v3.259.0"))
provider = subprocess.Popen(["sleep", "300"], start_new_session=True)
done = []
signal.signal(signal.SIGINT, lambda *_: done.append(1))
print(provider.pid, flush=True)
while not done or STUBBORN:
    time.sleep(0.05)
    if done:
        print("cancelling", flush=True)
print("update canceled", flush=True)
sys.exit(1)
"""
COMMAND = """
import sys
from tpustack import __main__
from tpustack.engine import backend

backend._IMPATIENT = 0.5

def run(**_):
    backend.Pulumi().run(["up"], ".", {}, lambda line: print(line, flush=True))

__main__.cli.main = run
__main__.main()
"""
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts a command that runs the stand-in, and waits until that is at work."""

    def started(*, stubborn: bool = False) -> subprocess.Popen[str]:
        engine = tmp_path / "pulumi"
        engine.write_text(ENGINE.replace("STUBBORN", str(stubborn)), encoding="utf-8")
        engine.chmod(0o755)
        return subprocess.Popen(
            [sys.executable, "-c", COMMAND],
            env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return started


def line(command: subprocess.Popen[str]) -> str:
    assert command.stdout is not None
    return command.stdout.readline().strip()


def runs(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.slow
def test_after_ctrl_c_the_engine_finishes_and_its_provider_is_ended(start: Start) -> None:
    with start() as command:
        provider = int(line(command))
        os.killpg(command.pid, signal.SIGINT)
        out, err = command.communicate()
    assert out.splitlines()[-1] == "update canceled"
    assert err.splitlines()[-1] == "interrupted; nothing is left running on this machine"
    assert "Traceback" not in err
    assert command.returncode == 130
    assert not runs(provider)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_an_engine_that_keeps_running(start: Start) -> None:
    with start(stubborn=True) as command:
        provider = int(line(command))
        os.killpg(command.pid, signal.SIGINT)
        assert line(command) == "cancelling"
        os.killpg(command.pid, signal.SIGINT)
        assert command.wait() == 130
    assert not runs(provider)


@pytest.mark.slow
def test_after_sigterm_a_running_engine_is_ended_in_time(start: Start) -> None:
    with start(stubborn=True) as command:
        provider = int(line(command))
        command.terminate()
        assert command.wait() == 128 + signal.SIGTERM
    assert not runs(provider)


@pytest.mark.slow
def test_orphans_of_killed_commands_are_ended_and_live_ones_kept(
    start: Start, tmp_path: Path
) -> None:
    with start() as living, start(stubborn=True) as killed:
        kept, orphan = int(line(living)), int(line(killed))
        killed.kill()
        # Nobody has asked how it ended yet.
        os.waitid(os.P_PID, killed.pid, os.WEXITED | os.WNOWAIT)
        before = runs(orphan)
        ended = toolchain.end_orphans()
        after = runs(orphan), runs(kept)
        living.terminate()
        living.communicate()
    assert before
    assert ended >= 2
    assert after == (False, True)
    assert not runs(kept)


@pytest.mark.parametrize("changed", ["boot pid:[1]", ""])
def test_processes_marked_in_another_container_are_left_alone(changed: str, tmp_path: Path) -> None:
    """This machine sees the processes of its containers, whose numbers are others inside."""
    _, born, place = toolchain.mark()[toolchain.MARK].split(":", 2)
    dead = f"{2**22 + 1}:{born}"
    theirs, ours = (
        subprocess.Popen(["sleep", "600"], env={toolchain.MARK: mark})
        for mark in (f"{dead}:{changed}", f"{dead}:{place}")
    )
    # What other tests have left behind counts, too.
    assert toolchain.end_orphans() >= 1
    assert (runs(theirs.pid), runs(ours.pid)) == (True, False)
    ours.wait()
    theirs.kill()
    theirs.wait()


@pytest.mark.slow
def test_an_engine_is_noted_next_to_the_state_while_it_may_hold_a_lock(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}")
    notes = tmp_path / ".tpustack/holders"
    with start() as command:
        line(command)
        while not any(notes.glob("*")):
            assert command.poll() is None
        os.killpg(command.pid, signal.SIGINT)
        command.communicate()
    assert list(notes.iterdir()) == []


@pytest.mark.slow
def test_nothing_is_left_after_the_terminal_is_closed(start: Start) -> None:
    with start() as command:
        provider = int(line(command))
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.close()
        command.stderr.close()
        os.killpg(command.pid, signal.SIGHUP)
        command.wait()
    assert not runs(provider)
