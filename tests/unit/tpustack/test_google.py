"""What the client for Google's APIs repeats, and what it says of a call that nobody answers."""

from __future__ import annotations

import pytest
import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import SSLError
from urllib3.util import Retry

from tpustack.cloud.google import _RETRY, Google
from tpustack.errors import TpustackError


@pytest.mark.parametrize("verb", ["GET", "POST"])
def test_a_host_that_refuses_connections_is_an_error_of_ours(
    verb: str, free_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Retry, "sleep", lambda *_: None)
    session = requests.Session()
    google = Google(session)
    session.mount("http://", HTTPAdapter(max_retries=_RETRY))
    with pytest.raises(TpustackError, match="can't be reached"):
        google.exchange(verb, f"http://127.0.0.1:{free_tcp_port}/x", {}, None)


def test_what_may_have_been_carried_out_is_not_repeated() -> None:
    lost = SSLError("EOF occurred in violation of protocol")
    assert _RETRY.increment("GET", "/x", error=lost).total == 4
    with pytest.raises(Exception, match="EOF occurred"):
        _RETRY.increment("POST", "/x", error=lost)
