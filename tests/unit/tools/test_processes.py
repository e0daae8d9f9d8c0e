import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from toolchain import processes
from toolchain.pins import ToolchainError, without_hosts

from tests.patience import until


def test_standard_output_alone_is_returned() -> None:
    script = "import sys; print('out'); print('one', file=sys.stderr)"
    assert processes.run([sys.executable, "-c", script]) == "out\n"


def test_a_failure_says_which_program_and_what_it_said() -> None:
    with pytest.raises(ToolchainError, match=r"(?s)python.* failed:.*no such module"):
        processes.run([sys.executable, "-c", "import sys; sys.exit('no such module')"])


def test_an_interrupt_during_the_start_stops_what_was_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = []

    def start(*arguments: Any, **options: Any) -> "subprocess.Popen[str]":
        started.append(subprocess.Popen(*arguments, **options))
        signal.raise_signal(signal.SIGINT)
        return started[0]

    monkeypatch.setattr(
        processes, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": start})
    )
    with pytest.raises(KeyboardInterrupt):
        processes.run(["sleep", "600"])
    assert started[0].returncode == -signal.SIGTERM


def test_an_interrupt_stops_the_program_and_its_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"sleep 600 & echo $! > {pid_file}; wait"

    def interrupt_when_running() -> None:
        while not (pid_file.exists() and pid_file.read_text().strip()):
            time.sleep(0.01)
        # One that comes right before a read begins does not interrupt it; a person tries again.
        while _runs(int(pid_file.read_text())):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)

    threading.Thread(target=interrupt_when_running, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        processes.run(["sh", "-c", script])
    child = int(pid_file.read_text())
    until(lambda: not _runs(child))


def _runs(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_names_of_package_hosts_are_taken_out_of_messages() -> None:
    said = (
        "go: reading https://user:pw@mirror.example.org/go/x.zip: 403\n"
        "dial tcp: lookup mirror.example.org: no such host"
    )
    assert "example" not in without_hosts(said)
    assert "no such host" in without_hosts(said)


def test_what_takes_long_is_said_again_until_it_is_over(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(processes, "LINE_EVERY_SECONDS", 0.01)
    said = ""
    with processes.patience("building"):
        while said.count("tools: building (0 s)\n") < 2:
            said += capsys.readouterr().err
    assert said.startswith("tools: building\n")
    assert not [one for one in threading.enumerate() if "keep_saying" in one.name]
