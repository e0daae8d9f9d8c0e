"""The few calls of the TPU API that a queue needs, with the credentials that the provider uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import google.auth.exceptions
import requests
from pulumi import dynamic

from infra import credentials

Json = dict[str, Any]
_ROOT = "https://tpu.googleapis.com/v2alpha1/"
_TRANSIENT = (408, 429, 500, 502, 503, 504)
_ATTEMPTS = 6
# Seconds between two looks at something that takes its time: short at first, then as the provider.
_FIRST_PAUSE, _LONGEST_PAUSE, _GROWTH = 0.5, 10.0, 1.5
_CALL_SECONDS = 60.0


class TpuApiError(Exception):
    """The TPU API refused a call."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        """Google's name of the error, e.g. `FAILED_PRECONDITION`."""
        super().__init__(f"{message} (HTTP {status}{f', {reason}' if reason else ''})")


class TpuApi:
    """Calls `v2alpha1` of the TPU API; names are `projects/P/locations/Z/…`.

    The session and the clock are there for tests.
    """

    configured: ClassVar[Mapping[str, str]] = {}
    """The stack's configuration of the provider, in a process that calls for one stack only."""

    def __init__(
        self,
        session: requests.Session | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._session = session or _session(self.configured)
        self._clock = clock
        self._sleep = sleep

    def get(self, name: str) -> Json | None:
        """Return what has this name; None if nothing has."""
        try:
            return self._call("GET", name)
        except TpuApiError as error:
            if error.status == 404:
                return None
            raise

    def list_all(self, parent: str, collection: str) -> list[Json]:
        """Return everything of a kind in a place."""
        found: list[Json] = []
        query: dict[str, str] = {}
        while True:
            page = self._call("GET", f"{parent}/{collection}", None, query)
            found += page.get(collection, [])
            if not page.get("nextPageToken"):
                return found
            query = {"pageToken": page["nextPageToken"]}

    def post(self, name: str, body: Json, query: Mapping[str, str]) -> Json:
        """Create something below a name and return the operation."""
        return self._call("POST", name, body, query)

    def patch(self, name: str, body: Json, query: Mapping[str, str]) -> Json:
        """Change something and return the operation."""
        return self._call("PATCH", name, body, query)

    def delete(self, name: str, query: Mapping[str, str]) -> None:
        """Start to delete what has this name; it may be gone already."""
        try:
            self._call("DELETE", name, None, query)
        except TpuApiError as error:
            if error.status != 404:
                raise

    def finish(self, operation: Json, minutes: float) -> None:
        """Wait for an operation. Raises TpuApiError with what it failed with."""

        def done() -> bool:
            nonlocal operation
            if not operation.get("done"):
                operation = self._call("GET", operation["name"])
            return bool(operation.get("done"))

        self.wait(done, minutes, f"operation {operation['name']}")
        if error := operation.get("error"):
            raise TpuApiError(200, str(error.get("code", "")), error.get("message", "it failed"))

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
        for attempt in range(1, _ATTEMPTS + 1):
            last = attempt == _ATTEMPTS
            try:
                response = self._session.request(
                    method, _ROOT + name, json=body, params=dict(query), timeout=_CALL_SECONDS
                )
            except (requests.ConnectionError, requests.Timeout) as error:
                if last:
                    raise TpuApiError(0, "", f"the TPU API cannot be reached: {error}") from None
            else:
                if response.status_code < 400:
                    return dict(response.json() or {})
                refused = _error(response)
                if last or response.status_code not in _TRANSIENT:
                    raise refused
            self._sleep(min(2.0 ** (attempt - 1), _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")


class TpuResourceProvider(dynamic.ResourceProvider):
    """What the providers of the queue's resources have in common."""

    serialize_as_secret_always = False

    def configure(self, req: dynamic.ConfigureRequest) -> None:
        """Take the stack's configuration, with the credentials that Google's provider has."""
        said = {name: req.config.get(name) for name in credentials.SETTINGS}
        TpuApi.configured = {name: str(value) for name, value in said.items() if value}


def _error(response: requests.Response) -> TpuApiError:
    try:
        error = response.json()["error"]
        return TpuApiError(response.status_code, error.get("status", ""), error["message"])
    except (ValueError, KeyError, TypeError):
        return TpuApiError(response.status_code, "", response.text.strip()[:200] or "no message")


def _session(configured: Mapping[str, str]) -> requests.Session:
    try:
        return credentials.session(credentials.given(configured))
    except google.auth.exceptions.GoogleAuthError as error:
        raise TpuApiError(
            401,
            "",
            "no credentials for Google Cloud: run `gcloud auth application-default login`, or set "
            f"GOOGLE_OAUTH_ACCESS_TOKEN ({error})",
        ) from None
