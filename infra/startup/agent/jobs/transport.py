"""Calls to Cloud Storage as the machine's account, with the standard library alone."""

from __future__ import annotations

import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import IO, Any

# A match of the text itself: parsers of URLs differ about what the host of an odd one is.
_GOOGLES = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/")
_SECONDS = 60
# A token is asked for anew so long before it expires.
_EARLY = 120.0
_PASSING = {HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


class NoRedirects(urllib.request.HTTPRedirectHandler):
    """Let an answer that leads elsewhere be the answer: urllib would take the secrets along."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def with_token(
    token: str, method: str, url: str, headers: dict[str, str], body: Body
) -> urllib.request.Request:
    """Return a request with a token, which goes to Google's APIs only. Raises OSError."""
    if not _GOOGLES.match(url):
        raise OSError(f"{url} is not https://*.googleapis.com/, which alone gets the token")
    given = {**headers, "Authorization": f"Bearer {token}"}
    return urllib.request.Request(url, data=body, headers=given, method=method)


class Transport:
    """Sends requests.

    Args:
        metadata: returns an entry of the metadata server below `instance/`.
        tries: how often a call is tried that may work later.
    """

    def __init__(self, metadata: Callable[[str], str], tries: int = 1) -> None:
        self._metadata, self._tries = metadata, tries
        self._token, self._until = "", 0.0
        # Made once: urlopen() reads all certificates at each call, most of what an agent costs.
        https = urllib.request.HTTPSHandler(context=ssl.create_default_context())
        self._opener = urllib.request.build_opener(https, NoRedirects)

    def __call__(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        """Send a request and return the answer. Raises StoreError if there is none."""
        for left in reversed(range(self._tries)):
            try:
                answer = self._send(method, url, headers, body)
            except OSError as error:
                if not left:
                    raise StoreError(0, f"{url} can't be reached: {error}") from None
            else:
                passing = answer[0] in _PASSING or answer[0] >= HTTPStatus.INTERNAL_SERVER_ERROR
                if not left or not passing:
                    return answer
            self._until = 0.0
            time.sleep(2.0 ** (self._tries - left - 1))
            if body is not None and not isinstance(body, bytes):
                body.seek(0)
        raise AssertionError("at least one try")

    def _send(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        request = with_token(self._current_token(), method, url, headers, body)
        try:
            with self._opener.open(request, timeout=_SECONDS) as response:
                return response.status, dict(response.headers), response.read()
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.UNAUTHORIZED:
                self._until = 0.0
            return error.code, dict(error.headers), error.read()

    def _current_token(self) -> str:
        if time.monotonic() > self._until:
            answer = json.loads(self._metadata("service-accounts/default/token"))
            self._token = str(answer["access_token"])
            self._until = time.monotonic() + float(answer.get("expires_in", 0)) - _EARLY
        return self._token


Body = bytes | IO[bytes] | None


Answer = tuple[int, Mapping[str, str], bytes]


Send = Callable[[str, str, dict[str, str], "bytes | IO[bytes] | None"], Answer]
"""(method, URL, headers, body) -> (HTTP status, headers, content)."""


class StoreError(OSError):
    """The bucket refuses a call, or can't be reached; `status` is HTTP's, 0 for no answer."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status
