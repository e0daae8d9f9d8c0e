"""Resources of Google's REST APIs, for what this project deploys without the provider.

Calls, errors and pauses are tpu_core's. What is added here is what a deployment needs on top: it
repeats what may work later, reads lists whole, and waits for operations.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import ClassVar
from urllib.parse import urlencode

from tpu_core import times
from tpu_core.google import Client, GoogleError, Json, message
from tpu_infra import credentials

_TRANSIENT = (408, 429, 500, 502, 503, 504)
ATTEMPTS = 6
# Seconds between two attempts, and between two looks at something that takes its time: short at
# first, since a label changes in a second, and then as long as the provider's own.
_FIRST_ATTEMPT, _FIRST_LOOK, _LONGEST_PAUSE, _GROWTH = 1.0, 0.5, 10.0, 1.5


class ApiError(GoogleError):
    """An API of Google's refused a call, or could not be reached (status 0).

    `reason` is Google's name of the error, such as `FAILED_PRECONDITION`; of an operation that
    failed, its code as text.
    """

    def __init__(self, status: int, reason: str, text: str) -> None:
        self.reason = reason
        super().__init__(status, f"{text} (HTTP {status}{f', {reason}' if reason else ''})")


class Api:
    """Calls one API; names are what its addresses have behind the version.

    Args:
        root: the address in front of names.
        title: what people call the API.
        client: makes the calls; by default with the credentials of the provider.
        clock: seconds, for tests.
        sleep: lets time pass, for tests.
        connects: how often a call tries to reach Google.

    Raises:
        ApiError: there are no credentials.
    """

    configured: ClassVar[Mapping[str, str]] = {}
    """The stack's configuration of the provider, in a process that calls for one stack only."""
    configured_here: ClassVar[ContextVar[Mapping[str, str]]] = ContextVar("configured_here")
    """That of this thread, where each resource has its own."""

    def __init__(
        self,
        root: str,
        title: str,
        client: Client | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        connects: int = ATTEMPTS,
    ) -> None:
        self._root, self._title, self._connects = root, title, connects
        self._client = client or _client(Api.configured_here.get(Api.configured))
        self._clock, self._sleep = clock, sleep

    def get(self, name: str) -> Json | None:
        """Return what has this name; None if nothing has."""
        try:
            return self.call("GET", name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def list_all(self, parent: str, collection: str, **query: str) -> list[Json]:
        """Return everything of a kind in a place, or what a query leaves of it; never a part."""
        found: list[Json] = []
        while True:
            page = self.call("GET", f"{parent}/{collection}", None, query)
            # What a zone that does not answer holds would look deleted.
            if places := page.get("unreachable"):
                raise ApiError(503, "UNAVAILABLE", f"Google can't reach {', '.join(places)}")
            found += page.get(collection, [])
            if not page.get("nextPageToken"):
                return found
            query = {**query, "pageToken": page["nextPageToken"]}

    def finish(self, operation: Json, minutes: float) -> None:
        """Wait for an operation. Raises ApiError with what it failed with."""

        def done() -> bool:
            nonlocal operation
            if not operation.get("done"):
                operation = self.call("GET", operation["name"])
            return bool(operation.get("done"))

        self.wait(done, minutes, f"operation {operation['name']}")
        if error := operation.get("error"):
            raise ApiError(200, str(error.get("code", "")), error.get("message", "it failed"))

    def wait(self, over: Callable[[], bool], minutes: float, what: str) -> None:
        """Ask `over` until it is true. Raises TimeoutError, naming `what`, after `minutes`."""
        end = self._clock() + minutes * 60
        pause = _FIRST_LOOK
        while not over():
            left = end - self._clock()
            if left <= 0:
                raise TimeoutError(f"{what} isn't done after {minutes:g} minutes")
            self._sleep(min(pause, left))
            pause = min(pause * _GROWTH, _LONGEST_PAUSE)

    def call(
        self, method: str, name: str, body: Json | None = None, query: Mapping[str, str] = {}
    ) -> Json:
        """Return the answer to a call, an operation where it takes its time. Raises ApiError."""
        url = f"{self._root}{name}{'?' if query else ''}{urlencode(query)}"
        text = None if body is None else json.dumps(body)
        for tries in range(ATTEMPTS):
            reached = True
            try:
                status, answer = self._client.call(method, url, text)
            except (ConnectionError, TimeoutError) as error:
                reached = False
                failure = f"the {self._title} API can't be reached: {error}"
                status, answer = 0, {"error": {"message": failure}}
            if 0 < status < 400:
                return answer
            refused = ApiError(status, _reason(answer), message(answer))
            # Where Google can't be reached, a preview gives up sooner than an update.
            last = tries + 1 >= (ATTEMPTS if reached else self._connects)
            if last or (reached and status not in _TRANSIENT):
                raise refused
            self._sleep(times.backoff(tries, _FIRST_ATTEMPT, _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")


def _reason(answer: Json) -> str:
    error = answer.get("error")
    return str(error.get("status", "")) if isinstance(error, dict) else ""


def say(text: str) -> None:
    """Print a message of a resource, which the engine shows."""
    print(text, file=sys.stdout, flush=True)


def _client(configured: Mapping[str, str]) -> Client:
    import google.auth.exceptions

    try:
        return credentials.client(credentials.given(configured))
    except google.auth.exceptions.GoogleAuthError as error:
        text = (
            "no credentials for Google Cloud: run `gcloud auth application-default login`, or set "
            f"GOOGLE_OAUTH_ACCESS_TOKEN ({error})"
        )
        raise ApiError(401, "", text) from None
