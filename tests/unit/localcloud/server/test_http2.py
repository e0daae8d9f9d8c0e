"""HTTP/2 below gRPC; Google's clients of gRPC are tried in tests/unit/localcloud/grpc."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event, ResponseReceived, StreamEnded

Connect = Callable[..., ssl.SSLSocket]
HOST = "tpu.googleapis.com"
POST = [(":method", "POST"), (":scheme", "https"), (":authority", HOST), (":path", "/a.B/C")]


@pytest.mark.parametrize(
    ("offer", "chosen"),
    [(["h2", "http/1.1"], "http/1.1"), (["h2"], "h2"), (["http/1.1"], "http/1.1"), ([], None)],
)
def test_http2_is_for_clients_that_speak_nothing_else(
    connect: Connect, offer: list[str], chosen: str | None
) -> None:
    assert connect(HOST, offer=offer).selected_alpn_protocol() == chosen


def test_http2_requests_without_grpc_get_415(connect: Connect) -> None:
    connection = connect(HOST, offer=["h2"])
    client = H2Connection()
    client.initiate_connection()
    client.send_headers(1, [*POST, ("content-type", "application/json")], end_stream=True)
    connection.sendall(client.data_to_send())
    received: list[Event] = []
    while not any(isinstance(event, StreamEnded) for event in received):
        received += client.receive_data(connection.recv(1 << 16))
    [response] = [event for event in received if isinstance(event, ResponseReceived)]
    assert (b":status", b"415") in response.headers


def test_a_client_that_breaks_the_protocol_gets_goaway_and_is_disconnected(
    connect: Connect,
) -> None:
    connection = connect(HOST, offer=["h2"])
    client = H2Connection()
    client.initiate_connection()
    data_on_stream_zero = b"\0\0\x01" + b"\0" * 6 + b"x"
    connection.sendall(client.data_to_send() + data_on_stream_zero)
    received: list[Event] = []
    while data := connection.recv(1 << 16):
        received += client.receive_data(data)
    assert any(isinstance(event, ConnectionTerminated) for event in received)
