"""Calls to Cloud Storage as the machine's account, with the standard library alone."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus

from .store import Answer, Body, StoreError

_SECONDS = 60
# A token is asked for anew so long before it expires.
_EARLY = 120.0
_PASSING = {HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


class Transport:
    """Sends requests.

    Args:
        metadata: returns an entry of the metadata server below `instance/`.
        tries: how often a call is tried that may work later.
    """

    def __init__(self, metadata: Callable[[str], str], tries: int = 1) -> None:
        self._metadata, self._tries = metadata, tries
        self._token, self._until = "", 0.0

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
        given = {**headers, "Authorization": f"Bearer {self._current_token()}"}
        request = urllib.request.Request(url, data=body, headers=given, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_SECONDS) as response:
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
