"""A process whose worker has died ends, also where TensorFlow waits for ever."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tpu_training.cluster.endpoint import WorkerWatch, watching

_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


class Worker:
    """A gRPC server, as far as a connection's first words go; the kernel takes connections."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(10)
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.accepted: list[socket.socket] = []

    def accept(self, greeting: bytes) -> None:
        connection, _ = self.listener.accept()
        connection.sendall(greeting)
        self.accepted.append(connection)

    def die(self) -> None:
        for each in (*self.accepted, self.listener):
            each.close()


class Watched:
    """A watch over one worker, by a clock that is set."""

    def __init__(self, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.worker = 0.0, worker
        self.watch = WorkerWatch([worker.address], lambda: self.now)
        real = socket.create_connection

        def connect(address: tuple[str, int], timeout: float) -> socket.socket:
            connection = real(address, timeout=timeout if self.answers else 0.05)
            worker.accept(_SETTINGS if self.answers else b"")
            return connection

        self.answers = True
        monkeypatch.setattr(socket, "create_connection", connect)

    def at(self, now: float) -> str | None:
        self.now = now
        return self.watch.look()


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    worker = Worker()
    yield Watched(worker, monkeypatch)
    worker.die()


def test_a_worker_that_answers_is_left_alone(watched: Watched) -> None:
    assert not any(watched.at(now) for now in range(0, 600, 20))


def test_tensorflow_has_a_moment_after_a_worker_has_died(watched: Watched) -> None:
    watched.at(0)
    watched.worker.die()
    assert not watched.at(5)
    assert not watched.at(6)
    assert watched.at(6.5) == f"grpc://{watched.worker.address} closed its connections"


def test_a_worker_that_is_started_again_at_once_is_another_one(watched: Watched) -> None:
    watched.at(0)
    watched.worker.accepted.pop().close()
    assert not watched.at(1)
    assert watched.at(6)


def test_a_worker_that_dies_before_the_first_look_is_noticed(watched: Watched) -> None:
    watched.worker.die()
    assert not watched.at(0)
    assert watched.at(5)


def test_a_host_that_vanished_without_a_word_ends_it_after_two_minutes(watched: Watched) -> None:
    watched.at(0)
    watched.answers = False
    assert not watched.at(30)
    assert not watched.at(149)
    assert watched.at(150) == f"grpc://{watched.worker.address} has not answered for 120 s"


def test_a_worker_that_answers_again_in_time_is_left_alone(watched: Watched) -> None:
    watched.at(0)
    watched.answers = False
    watched.at(30)
    watched.answers = True
    assert not watched.at(100)
    assert not watched.at(101)
    watched.answers = False
    assert not watched.at(151)


# With the interpreter's lock, as TensorFlow asks a dead worker for a value's shape, and without.
WAITS = {
    -9: "import ctypes; ctypes.PyDLL(None).sleep(3600)",
    1: "import time; time.sleep(3600)",
}
WAITING = """
import os, sys
from tpu_training.cluster import endpoint
def end(why):
    print(why, flush=True)
    os._exit(1)
with endpoint.watching(sys.argv[1:], end):
    {wait}
"""


@pytest.mark.slow
def test_a_process_that_waits_for_a_dead_worker_ends_or_is_killed() -> None:
    worker, processes = Worker(), list[subprocess.Popen[str]]()
    for wait in WAITS.values():
        command = [sys.executable, "-c", WAITING.format(wait=wait), worker.address]
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        worker.accept(_SETTINGS)
    worker.die()
    said = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == list(WAITS)
    assert said == ["", f"grpc://{worker.address} closed its connections\n"]


def test_after_the_job_nobody_watches() -> None:
    worker, reasons = Worker(), list[str]()
    with watching([worker.address], reasons.append):
        worker.accept(_SETTINGS)
    # The watch has ended and closed its connection.
    worker.accepted[0].settimeout(60)
    while worker.accepted[0].recv(4096):
        pass
    assert reasons == []
