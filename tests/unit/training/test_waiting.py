from __future__ import annotations

import itertools
import logging
import socket
import threading
from collections.abc import Iterator
from typing import ClassVar

import pytest

from tpu_training.cluster.endpoint import Addresses, Wait, wait_for_workers, why_silent
from tpu_training.cluster.google import NotYet, Tpu, TpuName, addresses_of
from tpu_training.errors import EndpointError


class VirtualTime:
    def __init__(self) -> None:
        self.now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, tries: int = 40, interval: float = 10.0) -> Wait:
        return Wait(tries, interval, self.clock, self.sleep)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def address_of(server: socket.socket) -> str:
    return f"127.0.0.1:{server.getsockname()[1]}"


def test_waiting_ends_at_tries_times_interval_with_a_last_try_there() -> None:
    time = VirtualTime()
    attempts = list(time.wait().attempts())
    assert attempts[0].elapsed == 0
    assert attempts[-1].elapsed == 400
    assert time.now == 400


def test_pauses_start_short_and_never_exceed_the_interval() -> None:
    attempts = list(VirtualTime().wait(tries=3, interval=10).attempts())
    pauses = [b.elapsed - a.elapsed for a, b in itertools.pairwise(attempts)]
    assert pauses[0] == 0.5
    assert max(pauses) <= 10


def test_an_endpoint_where_nobody_listens_is_an_error_after_a_message_each_try(
    listener: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    address = address_of(listener)
    listener.close()
    time = VirtualTime()
    with caplog.at_level(logging.INFO), pytest.raises(EndpointError) as caught:
        wait_for_workers(Addresses((address,), "--tpu"), time.wait(tries=2, interval=1.0))
    assert f"grpc://{address} (connection refused) after 2 s" in str(caught.value)
    assert caught.value.exit_code == 1
    assert [record.getMessage().count(address) for record in caplog.records] == [1] * 4


def test_a_listener_that_never_speaks_is_silent(listener: socket.socket) -> None:
    assert why_silent(address_of(listener), timeout=0.2) == "no answer in 0.2 s"


def test_a_listener_that_is_no_grpc_server_is_told_apart(listener: socket.socket) -> None:
    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    assert why_silent(address_of(listener)) == "listens, but is not a gRPC server"
    thread.join()


def test_an_endpoint_that_comes_up_late_is_found(listener: socket.socket) -> None:
    address = address_of(listener)
    listener.close()
    time = VirtualTime()
    servers: list[socket.socket] = []

    def serve() -> None:
        connection, _ = servers[0].accept()
        with connection:
            connection.recv(1024)
            connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")

    def sleep_and_start(seconds: float) -> None:
        time.sleep(seconds)
        if time.now >= 3 and not servers:
            host, _, port = address.rpartition(":")
            servers.append(socket.create_server((host, int(port))))
            threading.Thread(target=serve, daemon=True).start()

    workers = Addresses((address,), "--tpu")
    assert wait_for_workers(workers, Wait(40, 1.0, time.clock, sleep_and_start)) == workers
    assert 3 <= time.now < 6
    servers[0].close()


def test_a_tpu_that_is_recreated_meanwhile_is_found_at_its_new_address(
    listener: socket.socket,
) -> None:
    """One that died is still READY for a while, at an address where nobody answers any more."""
    with socket.create_server(("127.0.0.1", 0)) as died:
        old = Tpu("READY", (address_of(died),), "HEALTHY", "2.19.1")
    new = Tpu("READY", (address_of(listener),), "HEALTHY", "2.19.1")

    class Api:
        answers: ClassVar[list[Tpu | NotYet]] = [
            old,
            NotYet("not there"),
            Tpu("CREATING", (), "", None),
        ]

        def get(self, name: TpuName) -> Tpu:
            answer = self.answers.pop(0) if self.answers else new
            if isinstance(answer, Exception):
                raise answer
            return answer

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1024)
            connection.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")

    threading.Thread(target=serve, daemon=True).start()
    workers = addresses_of(Api().get, TpuName("p", "us-central1-b", "my-tpu"), old, "--tpu=my-tpu")
    found = wait_for_workers(workers, VirtualTime().wait(tries=40, interval=10.0))
    assert found.addresses == new.addresses
    assert found.source == "--tpu=my-tpu"
