"""Calls of Google's REST APIs with the credentials of the provider."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import requests

from infra import credentials

Json = dict[str, Any]
_TRANSIENT = (408, 429, 500, 502, 503, 504)
ATTEMPTS = 6
# Seconds between two looks at something that takes its time: short at first, then as the provider.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.5, 10.0, 1.5
_CALL_SECONDS = 60.0


class ApiError(Exception):
    """An API of Google's refused a call."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        """Google's name of the error, e.g. `FAILED_PRECONDITION`."""
        super().__init__(f"{message} (HTTP {status}{f', {reason}' if reason else ''})")


class Api:
    """Calls one API; names are what its addresses have behind the version.

    Args:
        root: the address in front of names.
        title: what people call the API.
        session: with credentials; by default those of the provider.
        clock: seconds, for tests.
        sleep: lets time pass, for tests.
        connects: how often a call tries to reach Google.
    """

    configured: ClassVar[Mapping[str, str]] = {}
    """The stack's configuration of the provider, in a process that calls for one stack only."""

    def __init__(
        self,
        root: str,
        title: str,
        session: requests.Session | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        connects: int = ATTEMPTS,
    ) -> None:
        self._root, self._title, self._connects = root, title, connects
        self._session = session or _session(Api.configured)
        self._clock = clock
        self._sleep = sleep

    def get(self, name: str) -> Json | None:
        """Return what has this name; None if nothing has."""
        try:
            return self._call("GET", name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list_all(self, parent: str, collection: str, **query: str) -> list[Json]:
        """Return everything of a kind in a place, or what a query leaves of it; never a part."""
        found: list[Json] = []
        while True:
            page = self._call("GET", f"{parent}/{collection}", None, query)
            if places := page.get("unreachable"):
                raise ApiError(503, "UNAVAILABLE", f"Google does not reach {', '.join(places)}")
            found += page.get(collection, [])
            if not page.get("nextPageToken"):
                return found
            query = {**query, "pageToken": page["nextPageToken"]}

    def post(self, name: str, body: Json, query: Mapping[str, str] = {}) -> Json:
        """Create something below a name, or have something done; return the answer."""
        return self._call("POST", name, body, query)

    def patch(self, name: str, body: Json, query: Mapping[str, str]) -> Json:
        """Change something and return the operation."""
        return self._call("PATCH", name, body, query)

    def delete(self, name: str, query: Mapping[str, str]) -> None:
        """Start to delete what has this name; it may be gone already."""
        try:
            self._call("DELETE", name, None, query)
        except ApiError as error:
            if error.status != 404:
                raise

    def finish(self, operation: Json, minutes: float) -> None:
        """Wait for an operation. Raises ApiError with what it failed with."""

        def done() -> bool:
            nonlocal operation
            if not operation.get("done"):
                operation = self._call("GET", operation["name"])
            return bool(operation.get("done"))

        self.wait(done, minutes, f"operation {operation['name']}")
        if error := operation.get("error"):
            raise ApiError(200, str(error.get("code", "")), error.get("message", "it failed"))

    def wait(self, over: Callable[[], bool], minutes: float, what: str) -> None:
        """Asks `over` until it is true. Raises TimeoutError, naming `what`, after `minutes`."""
        end = self._clock() + minutes * 60
        pause = _FIRST_PAUSE
        while not over():
            left = end - self._clock()
            if left <= 0:
                raise TimeoutError(f"{what} is not done after {minutes:g} minutes")
            self._sleep(min(pause, left))
            pause = min(pause * _GROWTH, _LONGEST_PAUSE)

    def _call(
        self, method: str, name: str, body: Json | None = None, query: Mapping[str, str] = {}
    ) -> Json:
        for attempt in range(1, ATTEMPTS + 1):
            last = attempt == ATTEMPTS
            try:
                response = self._session.request(
                    method, self._root + name, json=body, params=dict(query), timeout=_CALL_SECONDS
                )
            except (requests.ConnectionError, requests.Timeout) as error:
                if attempt >= self._connects:
                    said = f"the {self._title} API cannot be reached: {error}"
                    raise ApiError(0, "", said) from None
            else:
                if response.status_code < 400:
                    return dict(response.json() or {})
                refused = _error(response)
                if last or response.status_code not in _TRANSIENT:
                    raise refused
            self._sleep(min(2.0 ** (attempt - 1), _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")


def say(message: str) -> None:
    """Print a message of a resource, which the engine shows."""
    print(message, file=sys.stdout, flush=True)


def _error(response: requests.Response) -> ApiError:
    try:
        error = response.json()["error"]
        return ApiError(response.status_code, error.get("status", ""), error["message"])
    except (ValueError, KeyError, TypeError):
        return ApiError(response.status_code, "", response.text.strip()[:200] or "no message")


def _session(configured: Mapping[str, str]) -> requests.Session:
    import google.auth.exceptions

    try:
        return credentials.session(credentials.given(configured))
    except google.auth.exceptions.GoogleAuthError as error:
        raise ApiError(
            401,
            "",
            "no credentials for Google Cloud: run `gcloud auth application-default login`, or set "
            f"GOOGLE_OAUTH_ACCESS_TOKEN ({error})",
        ) from None
