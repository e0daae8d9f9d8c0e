"""Requests that may work later are repeated, for as long as the caller has patience."""

from __future__ import annotations

import io
import time
import urllib.request
from http.client import HTTPException, IncompleteRead, InvalidURL
from typing import Any, ClassVar

import pytest

from tpu_core.google import (
    Answer,
    Body,
    GoogleError,
    MachineToken,
    MetadataServer,
    Tokens,
    Transport,
    message,
)
from tpu_core.times import backoff

URL = "https://storage.googleapis.com/storage/v1/b/x"


class Opened(io.BytesIO):
    headers: ClassVar[dict[str, str]] = {}
    status = 200


def transport(
    monkeypatch: pytest.MonkeyPatch,
    patience: float,
    failures: int,
    failure: Exception = OSError("connection lost"),  # noqa: B008
) -> tuple[Any, Any]:
    """A transport whose first calls fail, and the pauses that it made."""
    pauses = list[float]()
    made: Any = Transport(MachineToken(lambda _: '{"access_token": "t"}'), patience)
    left = [failure] * failures

    def opened(*_: Any, **__: Any) -> Opened:
        if left:
            raise left.pop()
        return Opened(b"done")

    monkeypatch.setattr(urllib.request.OpenerDirector, "open", opened)
    monkeypatch.setattr(time, "sleep", pauses.append)
    return made, pauses


def test_a_request_is_repeated_after_pauses_that_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    send, pauses = transport(monkeypatch, 60.0, 3)
    assert send("GET", URL, {}, None)[2] == b"done"
    assert len(pauses) == 3
    assert all(2.0**n <= pause <= 2.0 ** (n + 1) for n, pause in enumerate(pauses))


def test_without_patience_the_first_failure_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    send, pauses = transport(monkeypatch, 0.0, 1)
    with pytest.raises(GoogleError, match="can't be reached: connection lost") as raised:
        send("GET", URL, {}, None)
    assert (raised.value.status, pauses) == (0, [])


def test_an_answer_that_is_cut_off_is_a_failure_like_any_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = IncompleteRead(b"{", 10)
    send, _ = transport(monkeypatch, 60.0, 1, cut)
    assert send("GET", URL, {}, None)[0] == 200
    send, _ = transport(monkeypatch, 0.0, 1, cut)
    with pytest.raises(GoogleError, match="can't be reached: IncompleteRead"):
        send("GET", URL, {}, None)


def test_a_callers_own_wire_gets_a_token_and_another_after_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    tokens, sent = iter("ab"), list[str]()

    def wire(method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        sent.append(headers["Authorization"])
        return (200 if len(sent) > 1 else 401), {}, b""

    send = Transport(Tokens(lambda: (next(tokens), 3600.0)), 60.0, wire=wire)
    assert send("GET", URL, {}, None)[0] == 200
    assert sent == ["Bearer a", "Bearer b"]
    with pytest.raises(GoogleError, match=r"not https://\*\.googleapis\.com"):
        Transport(Tokens(lambda: ("a", 1.0)), wire=wire)("GET", "https://example.com/", {}, None)
    assert len(sent) == 2


def test_a_pause_doubles_up_to_the_longest_and_half_of_it_is_random() -> None:
    assert [backoff(n, 2.0, 10.0, lambda: 1.0) for n in range(4)] == [2.0, 4.0, 8.0, 10.0]
    assert backoff(0, 2.0, 10.0, lambda: 0.0) == 1.0


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b'{"error": {"message": "denied [EID: 0x90df]"}}', "denied"),
        (b'{"error": "invalid_grant"}', "invalid_grant"),
        (b"<html>proxy</html>", "<html>proxy</html>"),
        (b"", "no message"),
    ],
)
def test_an_error_is_read_in_all_of_googles_forms(content: bytes, text: str) -> None:
    assert message(content) == text


@pytest.mark.parametrize("error", [IncompleteRead(b""), InvalidURL("nonnumeric port")])
def test_a_metadata_server_that_breaks_off_or_has_no_such_address_is_an_oserror(
    monkeypatch: pytest.MonkeyPatch, error: HTTPException
) -> None:
    def fail(*_: object, **__: object) -> Answer:
        raise error

    server = MetadataServer("127.0.0.1")
    monkeypatch.setattr(server._opener, "open", fail)
    with pytest.raises(OSError, match=type(error).__name__):
        server.read("instance/id")
