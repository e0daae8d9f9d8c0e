"""What the agent knows of Google's APIs: addresses, answers, and how to call them."""

from __future__ import annotations

import json
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import IO, Any

from tpu_core.times import timestamp

Json = dict[str, Any]
Call = Callable[[str, str, "str | None"], tuple[int, Json]]
"""(method, URL, text to send) -> (HTTP status, JSON object)."""

STORAGE = "https://storage.googleapis.com/"
HIDDEN = "is not found or access is unauthorized"
"""What the TPU API says of a zone that it does not have, or does not show to the project."""
_LARGEST = 1e15

# Such as "[EID: 0x90dfdfda32f61e59]" (tensorflow/tpu, issue 877): the same refusal is told once.
_NUMBER = re.compile(r" ?\[EID: \w+\]")


def is_missing(status: int, answer: Json) -> bool:
    """Return whether nothing is there: Google answers 403 in a zone that it hides, an AI zone."""
    return status == 404 or (status == 403 and HIDDEN in message(answer))


class JsonBucket:
    """Small objects of the stack's bucket."""

    def __init__(self, call: Call, name: str) -> None:
        self._call = call
        self._name = urllib.parse.quote(name)

    def read(self, path: str) -> Json | None:
        """Return the JSON object at `path`; None if there is none. Raises OSError."""
        status, content = self._call("GET", f"{self._address(path)}?alt=media", None)
        if status not in (200, 404):
            raise self._refused(status, path, content)
        return content if status == 200 else None

    def read_current(self, path: str) -> tuple[Json | None, str]:
        """Return the JSON object at `path` and its generation; 0 if there is none. Raises OSError.

        It may have been written since: then `write` refuses.
        """
        status, about = self._call("GET", self._address(path), None)
        found = self.read(path) if status == 200 else None
        if status not in (200, 404):
            raise self._refused(status, path, about)
        return found, "0" if found is None else str(about.get("generation", ""))

    def put_aside(self, path: str, now: float, why: str) -> str:
        """Copy what can't be read, with the reason next to it; return both. Raises OSError."""
        aside = f"rejected/{path}-{timestamp(now)}"
        url = f"{self._address(path)}/copyTo/{self._address(aside).partition('/v1/')[2]}"
        status, answer = self._call("POST", url, None)
        if status != 200:
            raise self._refused(status, aside, answer)
        self.write(f"{aside}.reason", f"{why}\n")
        return f"{path} is put aside as {aside}: {why}"

    def write(self, path: str, text: str, generation: str = "") -> str:
        """Write an object, and return its generation. Raises OSError.

        Args:
            path: its name.
            text: its content.
            generation: of what is there; anything may be, if it is empty.
        """
        query = {"uploadType": "media", "name": path}
        query |= {"ifGenerationMatch": generation} if generation else {}
        url = f"{STORAGE}upload/storage/v1/b/{self._name}/o?{urllib.parse.urlencode(query)}"
        status, answer = self._call("POST", url, text)
        if status != 200:
            raise self._refused(status, path, answer)
        return str(answer.get("generation", ""))

    def _address(self, path: str) -> str:
        return f"{STORAGE}storage/v1/b/{self._name}/o/{urllib.parse.quote(path, safe='')}"

    def _refused(self, status: int, path: str, answer: Json) -> OSError:
        return OSError(f"HTTP status {status} for gs://{self._name}/{path}: {message(answer)}")


def parse(text: bytes) -> Json:
    """Return an answer's JSON object; `{"garbage": true}` for anything else."""
    try:
        content = json.loads(text or b"{}")
    except (ValueError, RecursionError):
        content = None
    return content if isinstance(content, dict) else {"garbage": True}


def is_number(value: object) -> bool:
    """Return whether a value in the bucket is a number that a clock or a sum may say; no NaN."""
    return isinstance(value, int | float) and abs(value) < _LARGEST


def message(answer: Json) -> str:
    """Return the message of an error, without the number that Google gives each anew."""
    error = answer.get("error", {})
    said = str(error.get("message", "no message")) if isinstance(error, dict) else str(error)
    return _NUMBER.sub("", said)


_REGION = re.compile(r"[a-z]+-[a-z]+\d+")


def vertex_root(region: str) -> str:
    """Return the address of a region's custom jobs, which are known at its own host only.

    Raises:
        ValueError: it is no region. Records and states name it, and others may write those.
    """
    if not _REGION.fullmatch(region):
        raise ValueError(f"{region!r} is no region of Google's. One is like us-central1")
    return f"https://{region}-aiplatform.googleapis.com/v1"


# --- Calls to Cloud Storage as the machine's account, with the standard library alone.

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
                    raise GoogleError(0, f"{url} can't be reached: {error}") from None
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


class GoogleError(OSError):
    """The bucket refuses a call, or can't be reached; `status` is HTTP's, 0 for no answer."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status
