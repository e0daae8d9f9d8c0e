"""There is never more than one of a program, and what became of it is known, whoever was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.patience import until
from tpu_agent.child import Child, Ended

# Starts the program as an agent does, and is killed before it can wait for it.
DIES = """
import os, signal, sys
from pathlib import Path
from tpu_agent.child import Child
Child(Path(sys.argv[1])).start(3, sys.argv[2:], os.environ)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def child(tmp_path: Path) -> Iterator[Child]:
    made = Child(tmp_path / "child")
    yield made
    made.send(signal.SIGKILL)


def start(child: Child, script: str, number: int = 1) -> bool:
    return child.start(number, ["/bin/sh", "-c", script], os.environ)


@pytest.mark.parametrize(
    ("script", "code"), [("exit 0", 0), ("exit 75", 75), ("kill -9 $$", 128 + 9)]
)
def test_the_exit_code_is_known(child: Child, script: str, code: int) -> None:
    assert start(child, script)
    until(lambda: not child.running())
    assert child.ended(1) == Ended(1, code)


def test_arguments_and_environment_arrive_as_they_are(child: Child, tmp_path: Path) -> None:
    said = tmp_path / "said"
    script = 'printf "%s|" "$@" "$NAME" >"$0"'
    command = ["/bin/sh", "-c", script, str(said), "a b", "", "$x"]
    child.start(1, command, {**os.environ, "NAME": "'c'"})
    until(lambda: not child.running())
    assert said.read_text() == "a b||$x|'c'|"


def test_a_second_one_is_not_started_while_the_first_or_a_part_of_it_runs(child: Child) -> None:
    assert start(child, "sleep 60 & exit 3")
    until(lambda: child.ended(1) == Ended(1, 3))
    assert child.running()
    assert not start(child, "exit 0", 2)
    child.send(signal.SIGTERM)
    until(lambda: not child.running())
    assert start(child, "exit 0", 2)


def test_what_traps_sigterm_may_finish_its_work(child: Child, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    start(child, f"trap 'sleep 0.2; exit 75' TERM; touch {ready}; while :; do sleep 0.01; done")
    until(ready.exists)
    child.send(signal.SIGTERM)
    until(lambda: not child.running())
    assert child.ended(1) == Ended(1, 75)


def test_another_agent_finds_what_a_killed_one_has_started(child: Child, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    script = f"trap 'exit 75' TERM; touch {ready}; while :; do sleep 0.01; done"
    killed = subprocess.run(
        [sys.executable, "-c", DIES, str(tmp_path / "child"), "/bin/sh", "-c", script], check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert child.running()
    assert not start(child, "exit 0", 4)
    until(ready.exists)
    child.send(signal.SIGTERM)
    until(lambda: not child.running())
    assert child.ended(3) == Ended(3, 75)


def test_an_unknown_end_is_reported_as_unknown(child: Child, tmp_path: Path) -> None:
    start(child, "kill -9 $PPID; exit 5")
    until(lambda: not child.running())
    assert child.ended(1) == Ended(1, -1)
    start(child, "exit 5", 2)
    until(lambda: not child.running())
    assert child.ended(2) == Ended(2, 5)
    (tmp_path / "child/code").write_text("garbage")
    assert child.ended(2) == Ended(2, -1)


def test_a_start_that_never_happened_differs_from_one_with_an_unknown_end(child: Child) -> None:
    assert child.ended(1) is None
    start(child, "exit 5")
    until(lambda: not child.running())
    assert child.ended(2) is None


def test_nothing_is_signalled_when_nothing_runs(child: Child, tmp_path: Path) -> None:
    start(child, "exit 0")
    until(lambda: not child.running())
    # Somebody else has got the number meanwhile.
    (tmp_path / "child/pid").write_text(f"1 {os.getpgid(0)}")
    child.send(signal.SIGTERM)
