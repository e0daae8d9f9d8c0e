from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Any

import pytest

from localcloud.server.proxy import Listener

Connect = Callable[..., socket.socket]
STORAGE = "storage.googleapis.com"


def answers(connection: socket.socket, count: int = 1) -> list[tuple[int, dict[str, Any]]]:
    """The next responses: status and JSON body."""
    found = []
    with connection.makefile("rb") as file:
        for _ in range(count):
            status = int(file.readline().split()[1])
            headers = {}
            while line := file.readline().strip():
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            body = file.read(int(headers.get("content-length", 0)))
            found.append((status, json.loads(body) if body.startswith(b"{") else {}))
    return found


def test_a_tunnel_to_a_google_host_ends_in_the_cloud(connect: Connect) -> None:
    connection = connect(STORAGE)
    connection.sendall(f"GET /a%20b?x=1&x=2&y= HTTP/1.1\r\nHost: {STORAGE}\r\n\r\n".encode())
    [(status, told)] = answers(connection)
    assert status == 200
    assert told["host"] == STORAGE
    assert told["path"] == "/a%20b"
    assert told["query"] == {"x": ["1", "2"], "y": [""]}


def test_one_connection_serves_many_requests_also_pipelined(connect: Connect) -> None:
    connection = connect(STORAGE)
    request = "POST /p{} HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc"
    connection.sendall("".join(request.format(number) for number in range(5)).encode())
    found = answers(connection, 5)
    assert [told["path"] for _, told in found] == [f"/p{number}" for number in range(5)]
    assert {told["size"] for _, told in found} == {3}


def test_a_body_that_the_handler_ignores_is_not_taken_for_the_next_request(
    connect: Connect,
) -> None:
    connection = connect(STORAGE)
    body = "GET /evil HTTP/1.1\r\n\r\n"
    head = f"POST /ignored HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(f"{head}{body}GET /next HTTP/1.1\r\nHost: h\r\n\r\n".encode())
    assert [told["path"] for _, told in answers(connection, 2)] == ["/ignored", "/next"]


def test_a_chunked_body_is_decoded(connect: Connect) -> None:
    connection = connect(STORAGE)
    connection.sendall(
        b"PUT /read HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"5;note=x\r\nhello\r\nA\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n"
        b"GET /next HTTP/1.1\r\nHost: h\r\n\r\n"
    )
    [(_, first), (_, second)] = answers(connection, 2)
    assert first["size"] == 15
    assert second["path"] == "/next"


@pytest.mark.parametrize("body", ["-1\r\nabc", "3\r\nabcdef\r\n0\r\n\r\n", "0x3\r\nabc\r\n"])
def test_a_malformed_chunk_ends_the_connection(connect: Connect, body: str) -> None:
    connection = connect(STORAGE)
    head = "PUT /read HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    connection.sendall(f"{head}{body}".encode())
    assert connection.recv(1) == b""


def test_an_answer_that_nothing_changed_has_no_length(connect: Connect) -> None:
    connection = connect(STORAGE)
    connection.sendall(b"GET /unchanged HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    with connection.makefile("rb") as file:
        assert b"Content-Length" not in file.read()


def test_identity_beside_a_length_is_read_by_its_length_as_tensorflow_sends_it(
    connect: Connect,
) -> None:
    connection = connect(STORAGE)
    connection.sendall(
        b"PUT /read HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: identity\r\n"
        b"Content-Length: 4\r\n\r\nabcd"
    )
    assert answers(connection)[0][1]["size"] == 4


def test_expect_100_continue_is_answered(connect: Connect) -> None:
    connection = connect(STORAGE)
    connection.sendall(
        b"PUT /read HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    )
    assert connection.recv(4096).startswith(b"HTTP/1.1 100")
    connection.sendall(b"abcd")
    assert answers(connection)[0][1]["size"] == 4


def test_the_answer_to_head_has_a_length_and_no_body(connect: Connect) -> None:
    connection = connect(STORAGE)
    connection.sendall(b"HEAD /h HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    received = b""
    while data := connection.recv(4096):
        received += data
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"Content-Length: " in head
    assert b"Content-Length: 0" not in head
    assert body == b""


def test_a_connection_is_closed_when_the_client_asks_for_it(connect: Connect) -> None:
    connection = connect(STORAGE)
    connection.sendall(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    assert answers(connection)[0][0] == 200
    assert connection.recv(1) == b""


@pytest.mark.parametrize("length", ["abc", "-1", "1e3", "", "4\x1c"])
def test_a_content_length_that_is_not_a_number_is_refused(connect: Connect, length: str) -> None:
    connection = connect(STORAGE)
    connection.sendall(f"PUT / HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n".encode())
    assert answers(connection)[0][0] == 400
    assert connection.recv(1) == b""


@pytest.mark.parametrize(
    "head",
    [
        "GET /",
        "GET / HTTP/2.0",
        f"GET /{'x' * ((1 << 16) - 14)} HTTP/1.1",
        "GET / HTTP/1.1\r\nNo colon",
        "GET / HTTP/1.1\r\nHost : blank before the colon",
        "GET / HTTP/1.1\r\nFolded: a\r\n b: a line that goes on",
        "GET / HTTP/1.1\r\nBare: a\rEvil: a line for some",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked",
        f"GET / HTTP/1.1\r\nLong: {'x' * (1 << 16)}",
        "GET / HTTP/1.1" + "\r\nMany: x" * 101,
    ],
)
def test_a_malformed_head_is_refused_and_its_connection_closed(connect: Connect, head: str) -> None:
    connection = connect(STORAGE)
    connection.sendall(f"{head}\r\n\r\n".encode())
    assert answers(connection)[0][0] == 400


def test_a_head_that_breaks_off_is_not_carried_out(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"DELETE /x HTTP/1.1\r\nHost: h\r\n")
    connection.shutdown(socket.SHUT_WR)
    assert answers(connection)[0][0] == 400


def test_as_many_headers_as_may_be_are_taken(connect: Connect) -> None:
    connection = connect(STORAGE)
    connection.sendall(b"GET / HTTP/1.1" + b"\r\nMany: x" * 100 + b"\r\n\r\n")
    assert answers(connection)[0][0] == 200


def test_names_of_headers_have_any_case(connect: Connect) -> None:
    connection = connect(STORAGE)
    connection.sendall(b"PUT /read HTTP/1.1\r\nhost: h\r\nCONTENT-length:  4 \r\n\r\nabcd")
    assert answers(connection)[0][1]["size"] == 4


def test_an_old_client_is_kept_connected_only_if_it_asks(connect: Connect) -> None:
    connection = connect(STORAGE)
    connection.sendall(b"GET /1 HTTP/1.0\r\nConnection: keep-alive\r\n\r\nGET /2 HTTP/1.0\r\n\r\n")
    with connection.makefile("rb") as file:
        answered = file.read()
    paths = [answered.index(b'"/1"'), answered.index(b'"/2"')]
    assert answered.count(b"Connection: keep-alive\r\n") == 1
    assert answered.index(b"Connection: keep-alive\r\n") < paths[0] < paths[1]


@pytest.mark.parametrize("target", ["nonsense:port", "host:99999999", "[::1:443"])
def test_a_malformed_tunnel_is_refused(connect: Connect, target: str) -> None:
    connection = connect()
    connection.sendall(f"CONNECT {target} HTTP/1.1\r\n\r\n".encode())
    assert answers(connection)[0][0] == 400


def test_a_client_that_goes_away_inside_its_body_does_no_harm(
    connect: Connect, listener: Listener
) -> None:
    connection = connect(STORAGE)
    connection.sendall(b"PUT /read HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc")
    connection.close()
    following = connect(STORAGE)
    following.sendall(b"GET /after HTTP/1.1\r\nHost: h\r\n\r\n")
    assert answers(following)[0][1]["path"] == "/after"


def test_a_direct_request_has_no_host(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"GET /_local/v1/status HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert answers(connection)[0][1]["host"] == ""


def test_two_slashes_name_no_host(connect: Connect) -> None:
    connection = connect()
    connection.sendall(b"GET //metadata.google.internal/x HTTP/1.1\r\nHost: h\r\n\r\n")
    [(_, told)] = answers(connection)
    assert (told["host"], told["path"]) == ("", "/metadata.google.internal/x")


def test_a_plain_request_for_the_metadata_server_goes_to_the_owner_of_the_port(
    connect: Connect,
) -> None:
    connection = connect()
    url = b"http://metadata.google.internal/computeMetadata/v1/?recursive=true"
    connection.sendall(b"GET " + url + b" HTTP/1.1\r\nHost: metadata.google.internal\r\n\r\n")
    assert answers(connection)[0][1]["host"] == "metadata.google.internal"


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="Linux alone puts it off")
def test_a_head_is_acknowledged_before_its_body_comes(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    # urllib3, under google-cloud-storage, turns Nagle's algorithm on for proxies: it keeps the body
    # back until then, which Linux puts off for 40 ms.
    acknowledged = threading.Event()
    set_option = ssl.SSLSocket.setsockopt

    def noted(self: ssl.SSLSocket, level: int, option: int, value: int) -> None:
        set_option(self, level, option, value)
        if (level, option, value) == (socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1):
            acknowledged.set()

    monkeypatch.setattr(ssl.SSLSocket, "setsockopt", noted)
    connection = connect(STORAGE)
    connection.sendall(b"POST /read HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n")
    assert acknowledged.wait(20)
    connection.sendall(b"abc")
    assert answers(connection)[0][0] == 200
