"""Google's APIs without TensorFlow: the metadata server, access tokens, one object in a bucket."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import requests

from tpu_training.errors import AccessError, TrainingError

_METADATA_SECONDS = 5.0
_CHANGE_SECONDS = 60
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_CURE = (
    "run `gcloud auth application-default login`, set GOOGLE_APPLICATION_CREDENTIALS to a key "
    "file, or run on a VM with a service account and the cloud-platform scope"
)
# A token is replaced this long before it expires, so that it can't expire in transit.
_MARGIN_SECONDS = 60.0
# A match of the text itself: parsers of URLs differ about what the host of an odd one is.
_GOOGLES = re.compile(r"https://([a-z0-9-]+\.)+googleapis\.com/")
TokenSource = Callable[[], str]
_ROOT = "https://storage.googleapis.com"
_TIMEOUTS = (5.0, 10.0)
# 401: a token that expired on the way; the next one is another.
_PASSING = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
}


@dataclass(frozen=True)
class MetadataServer:
    """Reads `http://HOST/computeMetadata/v1/…`, with HOST found as Google's clients do."""

    host: str = "metadata.google.internal"

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> MetadataServer:
        """Use GCE_METADATA_HOST (or its older name GCE_METADATA_ROOT) if it is set."""
        host = environ.get("GCE_METADATA_HOST") or environ.get("GCE_METADATA_ROOT")
        return cls(host) if host else cls()

    def get(self, path: str) -> str | None:
        """Return the text at `path`; None if there is no metadata server or no such key."""
        url = f"http://{self.host}/computeMetadata/v1/{path}"
        try:
            answer = requests.get(
                url, headers={"Metadata-Flavor": "Google"}, timeout=_METADATA_SECONDS
            )
        except requests.RequestException:
            return None
        return answer.text.strip() if answer.ok else None

    def wait_for_change(self, path: str, etag: str) -> tuple[str, str] | None:
        """Return the JSON below `path` and its tag as soon as that is no longer `etag`.

        Returns it as it is after a minute; None if there is no answer.
        """
        url = f"http://{self.host}/computeMetadata/v1/{path}"
        query: dict[str, str | int] = {"recursive": "true", "alt": "json", "last_etag": etag}
        query |= {"wait_for_change": "true", "timeout_sec": _CHANGE_SECONDS}
        headers, patience = {"Metadata-Flavor": "Google"}, _CHANGE_SECONDS + _METADATA_SECONDS
        try:
            answer = requests.get(url, params=query, headers=headers, timeout=patience)
        except requests.RequestException:
            return None
        return (answer.text, answer.headers.get("ETag", "0")) if answer.ok else None

    def project(self) -> str | None:
        """Return the VM's project."""
        return self.get("project/project-id")

    def zone(self) -> str | None:
        """Return the VM's zone, without the `projects/NUMBER/zones/` before it."""
        zone = self.get("instance/zone")
        return zone.rpartition("/")[2] if zone else None

    def token(self) -> str | None:
        """Return a JSON object with access_token, expires_in (seconds) and token_type."""
        return self.get("instance/service-accounts/default/token")


def authorization(url: str, tokens: TokenSource) -> dict[str, str]:
    """Return the header that authorizes a request; raise AccessError unless it goes to Google."""
    if not _GOOGLES.match(url):
        raise AccessError(f"{url} is not https://*.googleapis.com/, which alone gets the token")
    return {"Authorization": f"Bearer {tokens()}"}


def application_default_tokens() -> TokenSource:
    """Return a function that gives a valid access token of Application Default Credentials.

    It uses google-auth if that is installed, else the VM's metadata server, and raises AccessError
    when there are no credentials.
    """
    try:
        return _google_auth_tokens()
    except ImportError:
        return MetadataTokens(MetadataServer.from_environment())


def bucket_tokens(environ: Mapping[str, str] = os.environ) -> TokenSource:
    """Return a function that gives the token with which TensorFlow itself reaches buckets.

    It takes this variable first (tsl/platform/cloud/google_auth_provider.cc).
    """
    token = environ.get("GOOGLE_AUTH_TOKEN_FOR_TESTING")
    return (lambda: token) if token else application_default_tokens()


class MetadataTokens:
    """Tokens of the VM's service account."""

    def __init__(self, server: MetadataServer) -> None:
        """Ask `server` for a token whenever the last one is about to expire."""
        self._server = server
        self._token = ""
        self._expires = 0.0

    def __call__(self) -> str:
        """Return a valid token."""
        if time.monotonic() > self._expires - _MARGIN_SECONDS:
            answer = self._server.token()
            if answer is None:
                raise AccessError(f"no Google credentials found: {_CURE}")
            content = json.loads(answer)
            self._token = content["access_token"]
            self._expires = time.monotonic() + float(content["expires_in"])
        return self._token


def _google_auth_tokens() -> TokenSource:
    from google.auth import default, exceptions
    from google.auth.transport.requests import Request

    try:
        credentials, _ = default(scopes=[SCOPE])
    except exceptions.GoogleAuthError as error:
        raise AccessError(f"no Google credentials found ({error}): {_CURE}") from error

    def token() -> str:
        try:
            if not credentials.valid:
                credentials.refresh(Request())  # type: ignore[no-untyped-call]
        except exceptions.GoogleAuthError as error:
            raise AccessError(f"Google credentials are refused ({error}): {_CURE}") from error
        return str(credentials.token)

    return token


class NotNow(TrainingError):
    """The bucket may answer later: 401, 408, 429, 5xx, connection lost."""


class Refused(Exception):
    """The bucket refuses the call; the catalog of errors has the cures."""


class Taken(TrainingError):
    """The object is no longer what the call expected."""


@dataclass(frozen=True)
class Found:
    """The object as it is: its numbers, its text, and seconds since the last renewal."""

    generation: int
    metageneration: int
    text: str
    age: float


class BucketObject:
    """One object, which is created, renewed, replaced and deleted on conditions only.

    Its generation changes with each new content, its metageneration and `updated` with each
    renewal; the bucket's clock sets both.
    https://docs.cloud.google.com/storage/docs/request-preconditions
    """

    def __init__(
        self, path: str, tokens: TokenSource, session: requests.Session | None = None
    ) -> None:
        """Use the object at gs://BUCKET/NAME with access tokens from `tokens`."""
        self._bucket, _, self._name = path.removeprefix("gs://").partition("/")
        self._path = path
        self._list = f"{_ROOT}/storage/v1/b/{quote(self._bucket)}/o"
        self._url = f"{self._list}/{quote(self._name, safe='')}"
        self._tokens = tokens
        self._session = session or requests.Session()

    def read(self) -> Found | None:
        """Return the object; None if there is none."""
        answer = self._call("GET", self._url)
        if answer is None:
            return None
        about = answer.json()
        generation = int(about["generation"])
        content = self._call("GET", self._url, alt="media", generation=generation)
        if content is None:
            return None
        text = content.content.decode(errors="replace")
        return Found(generation, int(about["metageneration"]), text, _age(answer, about))

    def put(self, text: str, generation: int = 0, metageneration: int | None = None) -> int:
        """Write `text` over what `read` found, or create it; return the new generation.

        Raises:
            Taken: It has changed since, or exists.
        """
        url = f"{_ROOT}/upload/storage/v1/b/{quote(self._bucket)}/o"
        query: dict[str, Any] = {"uploadType": "media", "name": self._name}
        query["ifGenerationMatch"] = generation
        if metageneration is not None:
            query["ifMetagenerationMatch"] = metageneration
        answer = self._call("POST", url, data=text.encode(), **query)
        return int(_known(answer).json()["generation"])

    def renew(self, generation: int, count: int) -> None:
        """Let the bucket's clock note that `generation` is still held, for the `count`th time.

        Raises:
            Taken: It is gone.
        """
        body = {"metadata": {"renewals": str(count)}}
        _known(self._call("PATCH", self._url, json=body, ifGenerationMatch=generation))

    def delete(self, generation: int) -> None:
        """Delete it, unless another process has replaced it."""
        self._call("DELETE", self._url, ifGenerationMatch=generation)

    def siblings(self, number: str = "size") -> dict[str, int]:
        """Return the size, or another number, of each object in the same folder, by its name."""
        folder = self._name[: self._name.rfind("/") + 1]
        query: dict[str, Any] = {
            "prefix": folder,
            "delimiter": "/",
            "fields": f"items(name,{number}),nextPageToken",
        }
        found: dict[str, int] = {}
        while True:
            page = _known(self._call("GET", self._list, **query)).json()
            for item in page.get("items", ()):
                found[item["name"].removeprefix(folder)] = int(item[number])
            if "nextPageToken" not in page:
                return found
            query["pageToken"] = page["nextPageToken"]

    def _call(
        self, method: str, url: str, data: bytes | None = None, json: object = None, **query: Any
    ) -> requests.Response | None:
        """Return the answer; None if there is no such object."""
        headers = authorization(url, self._tokens)
        try:
            answer = self._session.request(
                method,
                url,
                params=query,
                data=data,
                json=json,
                headers=headers,
                timeout=_TIMEOUTS,
            )
        except requests.RequestException as error:
            raise NotNow(f"{self._path}: Cloud Storage does not answer ({error})") from error
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        self._raise_refusal(answer)
        return answer

    def _raise_refusal(self, answer: requests.Response) -> None:
        status, message = answer.status_code, _message(answer)
        if answer.ok:
            return
        if status == HTTPStatus.PRECONDITION_FAILED:
            raise Taken(self._path)
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise NotNow(f"{self._path}: Cloud Storage answers {status} ({message})")
        raise Refused(f"{self._path}: HTTP response code {status}: {message}")


def _known(answer: requests.Response | None) -> requests.Response:
    if answer is None:
        raise Taken("it was deleted")
    return answer


def _age(answer: requests.Response, about: Any) -> float:
    """Return the seconds since the object's last change, both by the clock of Cloud Storage."""
    try:
        now = parsedate_to_datetime(answer.headers["Date"])
        changed = datetime.fromisoformat(about["updated"].replace("Z", "+00:00"))
        return max(0.0, (now - changed).total_seconds())
    except (KeyError, ValueError, TypeError):
        return 0.0


def _message(answer: requests.Response) -> str:
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.text.strip()[:300]
