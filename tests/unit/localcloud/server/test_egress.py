from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import requests

from localcloud.core.call import Response
from localcloud.server.authority import Authority
from localcloud.server.proxy import Listener
from tests.serving import in_thread

Connect = Callable[..., socket.socket]
SIZE = 3 << 20


class Elsewhere(BaseHTTPRequestHandler):
    """A host that is not Google's."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        self.wfile.write(b"x" * SIZE)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(201)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[::-1])

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def elsewhere() -> Iterator[int]:
    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere)) as server:
        yield server.server_port


@pytest.fixture
def proxied(listener: Listener) -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    session.proxies = {"http": f"http://127.0.0.1:{listener.port}"}
    return session


def test_plain_http_to_other_hosts_is_passed_on(proxied: requests.Session, elsewhere: int) -> None:
    answer = proxied.get(f"http://127.0.0.1:{elsewhere}/big", timeout=20)
    assert len(answer.content) == SIZE
    answer = proxied.post(f"http://127.0.0.1:{elsewhere}/", data=b"abc", timeout=20)
    assert (answer.status_code, answer.content) == (201, b"cba")


def test_a_host_that_cannot_be_reached_is_a_bad_gateway(proxied: requests.Session) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    answer = proxied.get(f"http://127.0.0.1:{port}/", timeout=20)
    assert answer.status_code == 502
    assert "cannot reach" in answer.text


def test_a_tunnel_to_another_host_carries_bytes_both_ways(connect: Connect, elsewhere: int) -> None:
    connection = connect()
    connection.sendall(f"CONNECT 127.0.0.1:{elsewhere} HTTP/1.1\r\n\r\n".encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
    # A client that has said all may close its half and still gets the whole answer.
    connection.shutdown(socket.SHUT_WR)
    received = 0
    while data := connection.recv(1 << 16):
        received += len(data)
    assert received > SIZE


def test_the_users_own_proxy_is_used_for_other_hosts(
    authority: Authority, elsewhere: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Proxy(Elsewhere):
        def do_GET(self) -> None:
            asked.append(self.path)
            super().do_GET()

    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    unused = Response(500)
    with in_thread(ThreadingHTTPServer(("127.0.0.1", 0), Proxy)) as server:
        # The listener reads it once, when it is made.
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.server_port}")
        listener = Listener(
            0, tls=authority.context(), apis=lambda _: unused, direct=lambda _: unused
        )
        listener.start()
        session = requests.Session()
        session.trust_env = False
        session.proxies = {"http": f"http://127.0.0.1:{listener.port}"}
        answer = session.get("http://packages.example/index", timeout=20)
        listener.stop()
    assert answer.status_code == 200
    assert asked == ["http://packages.example/index"]
