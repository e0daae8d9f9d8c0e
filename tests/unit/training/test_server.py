"""The server of a model answers programs, not web pages, and nobody can hold it up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from tpu_training.commands.serve import LOOPBACK
from tpu_training.serving import server
from tpu_training.serving.rest import RestApi

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
        ({"Origin": "https://evil.example"}, 403, "web pages"),
        ({"Origin": "null"}, 403, "web pages"),
        ({"Content-Type": "text/plain"}, 415, "expected Content-Type: application/json"),
    ],
)
def test_what_a_web_page_can_make_a_browser_send_is_refused(
    url: str, headers: dict[str, str], status: int, words: str
) -> None:
    answer = requests.post(f"{url}:predict", data=b"{}", headers=AS_JSON | headers, timeout=30)
    assert answer.status_code == status
    assert words in answer.json()["error"]
    if status != 415:
        assert requests.get(url, headers=headers, timeout=30).status_code == status


def test_silent_and_slow_connections_end_and_there_are_only_so_many(
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
