"""Calls Google's APIs with the caller's credentials; the environment says whether real or local."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import IO, Any, Final, cast
from urllib.parse import quote

import requests
from google.auth.exceptions import GoogleAuthError
from urllib3.util import Retry

from infra import credentials
from infra.hosts import keep_to_google
from tpu_core.google import message
from tpustack.errors import TpustackError

_OBJECT = "https://storage.googleapis.com/storage/v1/b/{}/o/{}"


class _Reads(Retry):
    """Retry reads, and anything that was never sent: the rest may have been carried out.

    urllib3 itself retries any method when TLS ends without a farewell, an "other" error to it.
    """

    def increment(self, method: str | None = None, *how: Any, **more: Any) -> Any:
        """Return what is left of the tries. Raises MaxRetryError if there are none."""
        left = self if method == "GET" else self.new(other=0)
        return super(_Reads, left).increment(method, *how, **more)


_RETRY = _Reads(
    total=5,
    backoff_factor=0.5,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=("GET",),
    raise_on_status=False,
)


class NotFound(TpustackError):
    """The API has no such resource."""


class Forbidden(TpustackError):
    """The caller may not, or the API is disabled."""


def says_disabled(error: Forbidden) -> bool:
    """Return whether Google refuses since the API is off (its reason SERVICE_DISABLED)."""
    return "it is disabled" in str(error)


_KINDS: Final[Mapping[int, type[TpustackError]]] = {403: Forbidden, 404: NotFound}


class Google:
    """Requests to Google's REST APIs; reads are retried with backoff after transient errors.

    Tests pass a session of their own.
    """

    def __init__(self, session: requests.Session | None = None) -> None:
        self._session = session or _session()
        keep_to_google(self._session, _RETRY)

    def get(self, url: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Return the JSON at `url`.

        Raises:
            TpustackError: with the API's own message.
        """
        return cast("dict[str, Any]", self._ask("GET", url, parameters).json())

    def text(self, url: str, parameters: Mapping[str, str | int] | None = None) -> str:
        """Return the text at `url`, such as an object's content."""
        return cast(str, self._ask("GET", url, parameters).text)

    def content(self, url: str) -> str:
        """Return the text of an object by its gs:// address. Raises TpustackError."""
        bucket, _, name = url.removeprefix("gs://").partition("/")
        return self.text(_OBJECT.format(quote(bucket), quote(name, safe="")), {"alt": "media"})

    def pages(
        self, url: str, field: str, parameters: Mapping[str, str | int] | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the items in `field` of every page at `url`.

        Raises:
            TpustackError: with the API's own message, or when Google can list a part only.
        """
        query = dict(parameters or {})
        while True:
            page = self.get(url, query)
            # What is missing then is not gone.
            if places := page.get("unreachable"):
                raise TpustackError(f"{url}: Google does not reach {', '.join(places)}")
            yield from page.get(field, ())
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def ask(self, url: str, body: object) -> dict[str, Any]:
        """Send a question as JSON and return the answer. Raises TpustackError."""
        return cast("dict[str, Any]", self._ask("POST", url, None, body).json())

    def post(self, url: str, parameters: Mapping[str, str | int], body: object) -> None:
        """Send JSON to `url`. Raises TpustackError with the API's message."""
        self._ask("POST", url, parameters, body)

    def delete(self, url: str, parameters: Mapping[str, str | int] | None = None) -> None:
        """Start to delete the resource at `url`. Raises TpustackError with the API's message."""
        self._ask("DELETE", url, parameters)

    def exchange(
        self, verb: str, url: str, headers: Mapping[str, str], body: bytes | IO[bytes] | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Send a request as it is; return status, headers and content, also of a refusal.

        Raises:
            TpustackError: without an answer.
        """
        try:
            response = self._session.request(verb, url, headers=headers, data=body, timeout=60)
        except (GoogleAuthError, requests.RequestException) as error:
            raise TpustackError(f"{url} can't be reached: {error}") from None
        return response.status_code, response.headers, response.content

    def _ask(
        self,
        verb: str,
        url: str,
        parameters: Mapping[str, str | int] | None,
        body: object | None = None,
    ) -> Any:
        try:
            response = self._session.request(verb, url, params=parameters, json=body, timeout=60)
        except (GoogleAuthError, requests.RequestException) as error:
            raise TpustackError(f"{url} can't be reached: {error}") from None
        if response.status_code >= 400:
            kind = _KINDS.get(response.status_code, TpustackError)
            raise kind(f"{url} answers {response.status_code}: {message(response.content)}")
        return response


def _session() -> requests.Session:
    try:
        return credentials.session(credentials.given({}))
    except GoogleAuthError as error:
        raise TpustackError(f"no Google credentials: {error}") from None
