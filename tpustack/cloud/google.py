"""Calls Google's APIs with the caller's credentials; the environment says whether real or local."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import google.auth
import requests
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from tpustack.errors import TpustackError

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_RETRY = Retry(
    total=5,
    backoff_factor=0.5,
    status_forcelist=(429, 500, 502, 503, 504),
    allowed_methods=("GET",),
    raise_on_status=False,
)


class NotFound(TpustackError):
    """The API has no such resource."""


class Google:
    """Requests to Google's REST APIs; reads are retried with backoff after transient errors.

    Tests pass a session of their own.
    """

    def __init__(self, session: requests.Session | None = None) -> None:
        self._session = session or _session()
        self._session.mount("https://", HTTPAdapter(max_retries=_RETRY))

    def get(self, url: str, parameters: Mapping[str, str | int] | None = None) -> dict[str, Any]:
        """Return the JSON at `url`.

        Raises:
            TpustackError: with the API's own message.
        """
        return cast("dict[str, Any]", self._ask("GET", url, parameters).json())

    def text(self, url: str, parameters: Mapping[str, str | int] | None = None) -> str:
        """Return the text at `url`, such as an object's content."""
        return cast(str, self._ask("GET", url, parameters).text)

    def delete(self, url: str, parameters: Mapping[str, str | int] | None = None) -> None:
        """Start to delete the resource at `url`. Raises TpustackError with the API's message."""
        self._ask("DELETE", url, parameters)

    def _ask(self, verb: str, url: str, parameters: Mapping[str, str | int] | None) -> Any:
        try:
            response = self._session.request(verb, url, params=parameters, timeout=60)
        except (GoogleAuthError, requests.RequestException) as error:
            raise TpustackError(f"{url} can't be reached: {error}") from None
        if response.status_code >= 400:
            try:
                reason = response.json()["error"]["message"]
            except (ValueError, KeyError, TypeError):
                reason = response.text[:300]
            kind = NotFound if response.status_code == 404 else TpustackError
            raise kind(f"{url} answers {response.status_code}: {reason}")
        return response


def _session() -> requests.Session:
    try:
        credentials, _ = google.auth.default(scopes=[SCOPE])
    except GoogleAuthError as error:
        raise TpustackError(f"no Google credentials: {error}") from None
    return AuthorizedSession(credentials)  # type: ignore[no-untyped-call]
