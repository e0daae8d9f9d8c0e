"""The demo knows what it started."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from tests.chaos import end_children
from tests.watch import Watch

SLEEPER = [sys.executable, "-c", "input()"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); input()",
]


def start(command: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def watched(roots: Callable[[], list[int]]) -> Watch:
    watch = Watch(roots, interval=0.01)
    watch.start()
    return watch


def test_a_child_that_still_runs_is_left_and_one_that_ended_is_not() -> None:
    watch = watched(lambda: [os.getpid()])
    with start(SLEEPER) as child:
        while psutil.Process(child.pid) not in watch.left():
            pass
        child.kill()
    watch.stop()
    assert psutil.Process().pid not in [process.pid for process in watch.left()]
    assert child.pid not in [process.pid for process in watch.left()]
    assert watch.peak_mib > 1


def test_only_addresses_of_other_machines_are_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = ("127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.1", "::ffff:192.0.2.7", "2001:db8::1")
    open_ones = [SimpleNamespace(raddr=SimpleNamespace(ip=host)) for host in hosts]
    listening = SimpleNamespace(raddr=())
    monkeypatch.setattr(
        psutil.Process, "net_connections", lambda process, kind: [*open_ones, listening]
    )
    watch = Watch(lambda: [os.getpid()])
    watch._sample()
    assert watch.elsewhere == {"192.0.2.1", "192.0.2.7", "2001:db8::1"}


def test_processes_may_appear_while_the_left_ones_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with start(SLEEPER) as early, start(SLEEPER) as late:
        roots = [early.pid]
        watch = watched(lambda: roots)
        while not watch.left():
            pass
        watch.stop()
        roots.append(late.pid)
        status = psutil.Process.status

        def meanwhile(process: psutil.Process) -> str:
            watch._sample()
            return status(process)

        monkeypatch.setattr(psutil.Process, "status", meanwhile)
        assert [process.pid for process in watch.left()] == [early.pid]
        for child in (early, late):
            child.kill()


def test_children_are_interrupted_and_then_killed() -> None:
    with start(SLEEPER) as polite, start(STUBBORN) as stubborn:
        assert stubborn.stdout is not None
        stubborn.stdout.readline()
        end_children(grace=0.5)
        assert not psutil.pid_exists(polite.pid)
        assert not psutil.pid_exists(stubborn.pid)
