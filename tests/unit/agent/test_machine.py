"""What the machine makes of what comes back from an address of Google's."""

from __future__ import annotations

import io
import urllib.request
from typing import ClassVar

import pytest

from tpu_agent.main import Machine
from tpu_core.google import Json
from tpu_core.tpu import TPU

FAILURE = (502, {"error": {"message": "the answer is not a JSON object"}})


class Answer(io.BytesIO):
    """An answer of this content."""

    status = 200
    headers: ClassVar[dict[str, str]] = {}


@pytest.mark.parametrize(
    ("url", "text", "expected"),
    [
        (TPU, b"<html>Log in to the network first</html>", FAILURE),
        (TPU, b"[1]", FAILURE),
        (TPU, b'{"state": "READY"}', (200, {"state": "READY"})),
    ],
)
def test_a_page_in_place_of_an_apis_answer_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, url: str, text: bytes, expected: tuple[int, Json]
) -> None:
    machine = Machine()
    monkeypatch.setattr(machine, "metadata", lambda path: ('{"access_token": "t"}', ""))
    monkeypatch.setattr(urllib.request.OpenerDirector, "open", lambda *_, **__: Answer(text))
    assert machine.client.call("GET", f"{url}v2/x", None) == expected


def test_a_job_may_wait_a_minute_for_a_change_of_the_metadata(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a training does for notices, through the job's own metadata server."""
    machine, timeouts = Machine(), list[float]()

    def opened(*_: object, timeout: float) -> Answer:
        timeouts.append(timeout)
        return Answer(b"{}")

    monkeypatch.setattr(machine._server._opener, "open", opened)
    machine.metadata("instance/?recursive=true&wait_for_change=true&timeout_sec=60&last_etag=0")
    assert timeouts[0] > 60 + 10
