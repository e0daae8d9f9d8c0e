"""The server of a model answers programs, not web pages, and nobody can hold it up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from tpu_training.commands import LOOPBACK
from tpu_training.serving import server
from tpu_training.serving.server import RestApi

pytestmark = pytest.mark.training

PREDICTOR: Any = SimpleNamespace(version="1")
API = RestApi("digits", PREDICTOR)
AS_JSON = {"Content-Type": "application/json"}


@pytest.fixture
def url() -> Iterator[str]:
    with server.create_server(API, LOOPBACK, 0) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://{LOOPBACK}:{made.server_port}/v1/models/digits"
        made.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [
        ({"Host": "evil.example:8501"}, 421, "Host: evil.example is not this server"),
        ({"Host": ""}, 421, "is not this server"),
        ({"Host": "[::1"}, 421, "is not this server"),
        ({"Host": "[evil.example]"}, 421, "Host: evil.example is not this server"),
        ({"Origin": "https://evil.example"}, 403, "web pages"),
        ({"Origin": "null"}, 403, "web pages"),
        ({"Content-Type": "text/plain"}, 415, "expected Content-Type: application/json"),
    ],
)
def test_requests_that_a_web_page_can_forge_are_refused(
    url: str, headers: dict[str, str], status: int, words: str
) -> None:
    answer = requests.post(f"{url}:predict", data=b"{}", headers=AS_JSON | headers, timeout=30)
    assert answer.status_code == status
    assert words in answer.json()["error"]
    if status != 415:
        assert requests.get(url, headers=headers, timeout=30).status_code == status


@pytest.mark.parametrize("host", ["localhost:8501", "127.0.0.1", "[::1]:8501", "trainer"])
def test_hosts_without_a_domain_are_accepted(url: str, host: str) -> None:
    assert requests.post(f"{url}:predict", headers={"Host": host}, timeout=30).status_code == 415


@pytest.mark.parametrize("length", ["", "-1", "\u00b2", "9" * 5000, "268435457"])
def test_a_body_without_a_length_or_with_a_wrong_one_is_refused(url: str, length: str) -> None:
    request = requests.Request("POST", f"{url}:predict", headers=AS_JSON).prepare()
    request.headers["Content-Length"] = length
    with requests.Session() as session:
        answer = session.send(request, timeout=30)
    assert answer.status_code == 400
    assert "expected a Content-Length of at most" in answer.json()["error"]


def test_a_slow_request_times_out(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.2)
    with socket.create_connection((LOOPBACK, int(url.split(":")[2].split("/")[0]))) as slow:
        slow.settimeout(0.02)
        with pytest.raises((ConnectionError, EOFError)):
            drip(slow)


def drip(slow: socket.socket) -> None:
    """Send a byte now and then; raise when the server closes the connection."""
    for _ in range(1500):
        try:
            if not slow.recv(4096):
                raise EOFError
        except TimeoutError:
            slow.sendall(b"G")


def test_idle_connections_time_out_and_their_number_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_CONNECTIONS", 2)
    monkeypatch.setattr(server._Handler, "timeout", 0.3)
    with server.create_server(API, LOOPBACK, 0) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.01,))
        thread.start()
        address = (LOOPBACK, made.server_port)
        head = b"POST /v1/models/digits:predict HTTP/1.1\r\nHost: localhost\r\n"
        head += b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        with socket.create_connection(address) as silent, socket.create_connection(address) as slow:
            slow.sendall(head)
            with socket.create_connection(address) as third:
                assert third.recv(1) == b""
            for each in (silent, slow):
                each.settimeout(30)
                assert each.recv(1) == b""
        answer = requests.get(f"http://{LOOPBACK}:{made.server_port}/v1/models/digits", timeout=30)
        assert answer.ok
        made.shutdown()
        thread.join()
