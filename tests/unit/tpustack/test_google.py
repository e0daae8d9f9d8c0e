"""The command line's calls to Google: what is repeated, and what an unanswered call says."""

from __future__ import annotations

import io
import urllib.request
from collections.abc import Callable
from urllib.error import HTTPError, URLError

import pytest

from infra.credentials import Given
from tpu_core import google as core
from tpustack.cloud import google
from tpustack.cloud.google import AccountToken, ApiError, Forbidden, Google, NotFound
from tpustack.errors import TpustackError

URL = "https://compute.googleapis.com/compute/v1/projects/mine/zones"
Replies = Callable[..., list[urllib.request.Request]]


@pytest.fixture
def replies(monkeypatch: pytest.MonkeyPatch) -> Replies:
    """Answer the next requests with these statuses, or errors; return the requests."""
    monkeypatch.setattr("tpu_core.google.time.sleep", lambda _: None)
    monkeypatch.setenv("GOOGLE_OAUTH_ACCESS_TOKEN", "ya29.token")

    def reply(*answers: int | Exception, content: bytes = b"{}") -> list[urllib.request.Request]:
        sent: list[urllib.request.Request] = []
        left = iter(answers)

        def opened(self: object, request: urllib.request.Request) -> object:
            sent.append(request)
            answer = next(left)
            if isinstance(answer, Exception):
                raise answer
            raise HTTPError(request.full_url, answer, "", {}, io.BytesIO(content))  # type: ignore[arg-type]

        monkeypatch.setattr(urllib.request.HTTPSHandler, "https_open", opened)
        return sent

    return reply


def test_a_read_is_repeated_until_google_answers(replies: Replies) -> None:
    sent = replies(503, URLError("refused"), 404)
    with pytest.raises(NotFound, match="answers 404"):
        Google().get(URL)
    assert [request.get_method() for request in sent] == ["GET"] * 3


def test_a_write_is_sent_once_since_it_may_have_been_carried_out(replies: Replies) -> None:
    sent = replies(503)
    with pytest.raises(ApiError, match="answers 503") as refusal:
        Google().post(URL, {}, {})
    assert (len(sent), refusal.value.status) == (1, 503)


def test_an_unreachable_host_is_one_message(replies: Replies) -> None:
    replies(URLError("no route"))
    with pytest.raises(TpustackError, match=r"can.t be reached: .*no route"):
        Google().delete(URL)


def test_a_call_that_needs_a_quota_project_is_charged_to_its_own_project(replies: Replies) -> None:
    sent = replies(403, 404, content=b"The API requires a quota project, which is not set")
    with pytest.raises(NotFound):
        Google().get(URL)
    assert [each.get_header("X-goog-user-project") for each in sent] == [None, "mine"]


def test_missing_credentials_are_reported_before_any_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_OAUTH_ACCESS_TOKEN", raising=False)
    monkeypatch.setenv("GOOGLE_CREDENTIALS", "not JSON")
    with pytest.raises(TpustackError, match="no Google credentials: gcp:credentials"):
        Google()


def test_a_page_of_a_proxy_is_refused() -> None:
    with pytest.raises(ApiError, match="something else than a JSON object"):
        Google(lambda *_: (200, {}, b"<html>")).get(URL)


def test_errors_of_google_are_errors_of_the_core_too() -> None:
    for error in (Forbidden("no"), NotFound("no"), ApiError(0, "no")):
        assert isinstance(error, core.GoogleError)
        assert str(error) == "no"
    assert AccountToken(Given(token="t"))() == "t"
    assert google.says_disabled(Forbidden("it is disabled"))
