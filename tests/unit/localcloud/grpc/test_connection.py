"""One connection of HTTP/2 and the calls on it, byte by byte."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any, cast

import pytest
from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection

from localcloud.server.grpc import Http2, Reply


class Peer:
    """A client that sends several calls in one piece."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.protocol = H2Connection(H2Configuration(header_encoding="utf-8"))
        self.protocol.initiate_connection()
        self.socket.settimeout(60)

    def call(self, *paths: str) -> None:
        for path in paths:
            number = self.protocol.get_next_available_stream_id()
            head = [(":method", "POST"), (":path", path), (":scheme", "https")]
            self.protocol.send_headers(number, [*head, (":authority", "h")], end_stream=True)

    def send(self) -> None:
        # The server may have broken off; what it sent before is still to be read.
        with suppress(BrokenPipeError):
            self.socket.sendall(self.protocol.data_to_send())

    def received(self) -> Iterator[events.Event]:
        while data := self.socket.recv(1 << 16):
            yield from self.protocol.receive_data(data)
            self.send()

    def body(self, number: int) -> bytes:
        """Return the answer to a call, however small the client's window."""
        found = b""
        for event in self.received():
            if isinstance(event, events.DataReceived) and event.stream_id == number:
                found += event.data
                self.protocol.acknowledge_received_data(event.flow_controlled_length, number)
                self.send()
            if isinstance(event, events.StreamEnded) and event.stream_id == number:
                return found
        raise ConnectionError("no answer")


Serve = Callable[[Callable[[str], bytes]], Peer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Answers calls by their paths; what the server raises fails the test."""
    failed: list[Exception] = []
    threads: list[threading.Thread] = []
    ours, its = socket.socketpair()

    def begin(answer: Callable[[str], bytes]) -> Peer:
        def reply(headers: Any, _: bytes) -> Reply:
            content = answer(headers[":path"])
            return Reply([(":status", "200")], content, [("grpc-status", "0")])

        def run() -> None:
            with closing(its):
                try:
                    Http2(cast(Any, its), reply).serve()
                except OSError:
                    pass
                except Exception as error:
                    failed.append(error)

        threads.append(threading.Thread(target=run))
        threads[0].start()
        return Peer(ours)

    yield begin
    ours.close()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert failed == []


def test_an_answer_does_not_wait_for_the_next_call(serve: Serve) -> None:
    released = threading.Event()

    def answer(path: str) -> bytes:
        assert path == "/first" or released.wait(60)
        return path.encode()

    peer = serve(answer)
    peer.call("/first", "/second")
    peer.send()
    assert peer.body(1) == b"/first"
    released.set()
    assert peer.body(3) == b"/second"


def test_a_broken_off_call_takes_no_answer_of_another_with_it(serve: Serve) -> None:
    def answer(path: str) -> bytes:
        if path == "/lost":
            raise ConnectionAbortedError(path)
        return path.encode()

    peer = serve(answer)
    peer.call("/first", "/lost")
    peer.send()
    assert peer.body(1) == b"/first"
    with pytest.raises(ConnectionError):
        peer.body(3)


def test_answers_larger_than_the_clients_window_are_sent_bit_by_bit(serve: Serve) -> None:
    peer = serve(lambda path: bytes(300_000))
    peer.call("/one")
    peer.send()
    assert len(peer.body(1)) == 300_000


def test_a_client_that_leaves_with_calls_open_is_no_failure(serve: Serve) -> None:
    peer = serve(lambda path: b"")
    peer.call("/one")
    peer.protocol.close_connection()
    peer.send()
    while peer.socket.recv(1 << 16):
        pass
