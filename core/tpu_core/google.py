"""HTTP calls to Google's APIs with the standard library alone.

A `Send` sends one request; `Transport` is the real one, with tokens from `Tokens`. `Client` makes
JSON calls of it, and `tpu_core.bucket.Bucket` a bucket. `MetadataServer` tells a machine about
itself, its tokens included.
"""

import http.client
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import IO, Any, TypeGuard

from tpu_core.times import backoff

Json = dict[str, Any]
Body = bytes | IO[bytes] | None
Answer = tuple[int, Mapping[str, str], bytes]
Send = Callable[[str, str, dict[str, str], Body], Answer]
"""(method, URL, headers, body) -> (HTTP status, headers, content). Raises OSError if no answer."""
Call = Callable[[str, str, "str | None"], tuple[int, Json]]
"""(method, URL, JSON text to send) -> (HTTP status, JSON object). Raises OSError if no answer."""

HIDDEN = "is not found or access is unauthorized"
"""What the TPU API says of a zone that it does not have, or does not show to the project."""
# A match of the text itself: URL parsers disagree about the host of an odd one.
_GOOGLE = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
# Such as "[EID: 0x90dfdfda32f61e59]" (tensorflow/tpu, issue 877): a number that differs each time.
_ERROR_NUMBER = re.compile(r" ?\[EID: \w+\]")
_TIMEOUT_SECONDS = 60.0
# A lease is lost within a minute, so a dead connection must not hold a renewal up for longer.
_SHORT_TIMEOUT_SECONDS = 10.0
_METADATA_HOST = "metadata.google.internal"
_FIRST_PAUSE, _LONGEST_PAUSE = 2.0, 32.0
# A token is replaced this long before it expires.
_EARLY_SECONDS = 120.0
# 401: the token expired on the way; the next one is another.
_TRANSIENT = {HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


def may_pass(status: int) -> bool:
    """Return whether the same request may work later; 0 stands for no answer at all."""
    return not status or status in _TRANSIENT or status >= HTTPStatus.INTERNAL_SERVER_ERROR


class GoogleError(OSError):
    """Google refuses a call or can't be reached; `status` is HTTP's, 0 without an answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Client:
    """JSON calls to Google's APIs by `send`."""

    def __init__(self, send: Send) -> None:
        self.send = send

    def call(self, method: str, url: str, body: str | None) -> tuple[int, Json]:
        """Return status and JSON object of an answer; it may be a refusal. Raises OSError.

        Anything but a JSON object, such as the page of some proxy, counts as a bad gateway.
        """
        data = None if body is None else body.encode()
        status, _, content = self.send(method, url, {"Content-Type": "application/json"}, data)
        answer = parse(content)
        if status == HTTPStatus.OK and answer.get("garbage"):
            return HTTPStatus.BAD_GATEWAY, {"error": {"message": "the answer is not a JSON object"}}
        return status, answer


class MetadataServer:
    """What Google tells a machine about itself: http://HOST/computeMetadata/v1/.

    https://docs.cloud.google.com/compute/docs/metadata/querying-metadata
    """

    def __init__(self, host: str = _METADATA_HOST) -> None:
        self.host = host
        self._opener = urllib.request.build_opener()

    def read(self, path: str, seconds: float = _TIMEOUT_SECONDS) -> tuple[str, str]:
        """Return an entry and its ETag, within so many seconds. Raises OSError.

        A missing entry is an HTTPError with the code 404.
        """
        url = f"http://{self.host}/computeMetadata/v1/{path}"
        request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
        try:
            with self._opener.open(request, timeout=seconds) as response:
                text = response.read().decode(errors="replace")
                return text, response.headers.get("ETag", "")
        except http.client.HTTPException as error:
            raise _lost(error) from error

    def wait(self, path: str, etag: str, seconds: int) -> tuple[str, str]:
        """Return an entry as soon as its ETag is another, at the latest after so many seconds."""
        join = "&" if "?" in path else "?"
        query = f"wait_for_change=true&timeout_sec={seconds}&last_etag={etag or '0'}"
        return self.read(f"{path}{join}{query}", seconds + _TIMEOUT_SECONDS)


class Tokens:
    """Access tokens, each used until two minutes before it expires.

    Args:
        fetch: returns a token and the seconds for which it is valid. Raises OSError.
    """

    def __init__(self, fetch: Callable[[], tuple[str, float]]) -> None:
        self._fetch = fetch
        self._token, self._until = "", 0.0

    def __call__(self) -> str:
        """Return a token that is valid for another two minutes. Raises OSError."""
        if time.monotonic() > self._until:
            self._token, lifetime = self._fetch()
            self._until = time.monotonic() + lifetime - _EARLY_SECONDS
        return self._token

    def expire(self) -> None:
        """Have the next call ask for another token."""
        self._until = 0.0


class MachineToken(Tokens):
    """Access tokens of the machine's service account.

    Args:
        entry: returns an entry of the metadata server below `instance/`. Raises OSError.
    """

    def __init__(self, entry: Callable[[str], str]) -> None:
        def fetch() -> tuple[str, float]:
            answer = json.loads(entry("service-accounts/default/token"))
            return str(answer["access_token"]), float(answer.get("expires_in", 0))

        super().__init__(fetch)


class Transport:
    """The real `Send`: it sends requests to https://*.googleapis.com/ alone.

    Args:
        token: where the access tokens come from.
        patience: for how many seconds a request is repeated that may work later.
        timeout: the seconds after which a silent connection counts as lost.
        authorities: a file or folder of the certificates to trust; the system's if empty.
        wire: what sends a request that has its token; by default urllib, with one connection a
            request. It follows no redirection, which would take the token along. Raises OSError
            without an answer.
    """

    def __init__(
        self,
        token: Tokens,
        patience: float = 0.0,
        timeout: float = _TIMEOUT_SECONDS,
        authorities: str = "",
        wire: Send | None = None,
    ) -> None:
        self._token, self._patience = token, patience
        self._wire = wire or _urllib(timeout, authorities)

    def __call__(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        """Send a request and return the answer. Raises GoogleError if there is none."""
        deadline, tries = time.monotonic() + self._patience, 0
        while True:
            failed: OSError | None = None
            try:
                answer = self._send(method, url, headers, body)
                if not may_pass(answer[0]):
                    return answer
            except OSError as error:
                failed = error
            pause = backoff(tries, _FIRST_PAUSE, _LONGEST_PAUSE)
            if time.monotonic() + pause > deadline:
                if failed:
                    raise GoogleError(0, f"{url} can't be reached: {failed}") from None
                return answer
            time.sleep(pause)
            tries += 1
            if body is not None and not isinstance(body, bytes):
                body.seek(0)

    def _send(self, method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        if not is_google(url):
            raise OSError(
                f"{url} is not https://*.googleapis.com/, the only host that gets the token"
            )
        sent = {**headers, "Authorization": f"Bearer {self._token()}"}
        answer = self._wire(method, url, sent, body)
        if answer[0] == HTTPStatus.UNAUTHORIZED:
            self._token.expire()
        return answer


def metadata_server() -> MetadataServer:
    """Return the metadata server, found as Google's clients do."""
    host = os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_ROOT")
    return MetadataServer(host) if host else MetadataServer()


def machine_transport(patience: float = 0.0) -> Transport:
    """Return what sends requests as this machine's account; GoogleError if it has none."""
    tokens = MachineToken(lambda path: metadata_server().read(f"instance/{path}", 5.0)[0])
    try:
        tokens()
    except OSError as error:
        raise GoogleError(
            HTTPStatus.UNAUTHORIZED,
            f"no Google credentials found ({error}): run on a machine with a service account and "
            "the cloud-platform scope, or write to a local folder",
        ) from None
    return transport(tokens, patience)


def transport(tokens: Tokens, patience: float = 0.0) -> Transport:
    """Return what sends the requests of a training; arguments are those of Transport."""
    # Where a company's proxy signs all answers, these name its authority to google-auth and to
    # TensorFlow's gs:// client; the standard library knows SSL_CERT_FILE alone.
    names = (os.environ.get(name, "") for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"))
    authorities = next((path for path in names if os.path.exists(path)), "")
    return Transport(tokens, patience, _SHORT_TIMEOUT_SECONDS, authorities)


def _urllib(timeout: float, authorities: str) -> Send:
    # Created once: urlopen() reads all certificates at each call, most of what an agent costs.
    file, folder = (None, authorities) if os.path.isdir(authorities) else (authorities, None)
    context = ssl.create_default_context(cafile=file or None, capath=folder)
    https = urllib.request.HTTPSHandler(context=context)
    opener = urllib.request.build_opener(https, _NoRedirects)

    def send(method: str, url: str, headers: dict[str, str], body: Body) -> Answer:
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        try:
            try:
                response = opener.open(request, timeout=timeout)
            except urllib.error.HTTPError as refusal:
                response = refusal
            with response:
                return response.status, dict(response.headers), response.read()
        except http.client.HTTPException as error:
            raise _lost(error) from error

    return send


def _lost(error: http.client.HTTPException) -> OSError:
    """Return as an OSError what urllib lets through as it is, such as half an answer."""
    return OSError(f"{type(error).__name__}: {error}")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Return a redirection as the answer: urllib would take the token along."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def is_google(url: str) -> bool:
    """Return whether credentials may be sent to a URL: to Google's APIs alone."""
    return bool(_GOOGLE.match(url))


def vertex_root(region: str) -> str:
    """Return the address of a region's custom jobs, which only its own host knows.

    Raises:
        ValueError: it is not a region. Records and states name it, and others may write those.
    """
    if not _REGION.fullmatch(region):
        raise ValueError(f"{region!r} is not a region of Google's. One is like us-central1")
    return f"https://{region}-aiplatform.googleapis.com/v1"


def parse(content: bytes) -> Json:
    """Return an answer's JSON object; `{"garbage": true}` for anything else."""
    try:
        answer = json.loads(content or b"{}")
    except (ValueError, RecursionError):
        answer = None
    return answer if isinstance(answer, dict) else {"garbage": True}


def message(answer: Json | bytes) -> str:
    """Return what a refusal says, without the number that differs each time."""
    if isinstance(answer, bytes):
        found = parse(answer)
        if "error" not in found:
            return answer[:300].decode(errors="replace").strip() or "no message"
        answer = found
    error = answer.get("error", {})
    text = str(error.get("message", "no message")) if isinstance(error, dict) else str(error)
    return _ERROR_NUMBER.sub("", text)


def reasons(answer: Json) -> set[str]:
    """Return the machine-readable reasons of a refusal, such as SERVICE_DISABLED.

    https://google.aip.dev/193; the older form has them in `errors`.
    """
    error = answer.get("error")
    details = [error.get(name) or () for name in ("details", "errors")] if _is_map(error) else []
    return {str(one.get("reason", "")) for part in details for one in part if _is_map(one)}


def _is_map(value: object) -> TypeGuard[Json]:
    return isinstance(value, dict)


def is_missing(status: int, answer: Json) -> bool:
    """Return whether nothing is there: Google answers 403 in a zone that it hides, an AI zone."""
    return status == 404 or (status == 403 and HIDDEN in message(answer))
