"""A listener that answers with what it was asked, and raw sockets to talk to it."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from localcloud.core.call import Request, Response
from localcloud.server.authority import Authority
from localcloud.server.proxy import Listener

Connect = Callable[..., socket.socket]


def echo(request: Request) -> Response:
    """Tells the request; `/ignored` leaves the body unread, `/read` counts it piece by piece."""
    if request.path == "/unchanged":
        return Response(304)
    size = 0
    if request.path != "/ignored":
        while data := request.stream.read(1 << 16):
            size += len(data)
    told = {
        "verb": request.verb,
        "host": request.host,
        "path": request.path,
        "query": request.query,
        "size": size,
    }
    return Response(200, json.dumps(told).encode(), {"Content-Type": "application/json"})


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def listener(authority: Authority) -> Iterator[Listener]:
    running = Listener(0, tls=authority.context(), apis=echo, direct=echo)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def connect(listener: Listener, authority: Authority) -> Iterator[Connect]:
    """Opens a socket to the listener; with a host, through its TLS tunnel."""
    with contextlib.ExitStack() as stack:

        def opened(
            host: str = "", ca: Path = authority.certificate, offer: Sequence[str] = ()
        ) -> socket.socket:
            plain = socket.create_connection(("127.0.0.1", listener.port), timeout=20)
            stack.callback(plain.close)
            if not host:
                return plain
            plain.sendall(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
            answer = plain.recv(4096)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            context = ssl.create_default_context(cafile=str(ca))
            if offer:
                context.set_alpn_protocols(offer)
            tls = context.wrap_socket(plain, server_hostname=host)
            stack.callback(tls.close)
            return tls

        yield opened
