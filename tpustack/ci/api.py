"""The HTTP API of a forge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import requests

from tpustack.errors import TpustackError

_PAGE = 100
_TIMEOUT = 30
# The files of one stack's preview, packed. Even the list of what is in a long archive takes memory.
_LONGEST, _PART = 10_000_000, 1 << 16
_FORBIDDEN, _NOT_FOUND = (401, 403), 404


class Refused(TpustackError):
    """The token may not see this."""


class Api:
    """A forge's API.

    Args:
        url: where the paths of the repository begin.
        whoami: the address that says whose token this is.
        headers: what every call sends.
    """

    def __init__(self, url: str, whoami: str, headers: Mapping[str, str]) -> None:
        self._url, self._whoami = url, whoami
        self._session = requests.Session()
        self._session.headers.update(headers)

    def path_of(self, url: str) -> str:
        """Return the path of an address in this repository; nothing of another one."""
        return url.removeprefix(self._url) if url.startswith(f"{self._url}/") else ""

    def all(self, path: str, **query: str) -> Iterator[dict[str, Any]]:
        """Yield the items of every page."""
        page = 1
        while True:
            parameters = {**query, "per_page": str(_PAGE), "page": str(page)}
            items = self.get(path, **parameters)
            yield from items
            if len(items) < _PAGE:
                return
            page += 1

    def find(self, path: str) -> Any:
        """Return what there is; None if there is nothing. Raises Refused where we may not look."""
        answer = self._request("GET", self._url + path, also=(*_FORBIDDEN, _NOT_FOUND))
        if answer.status_code in _FORBIDDEN:
            raise Refused(f"GET {self._url}{path} answers {answer.status_code}")
        return None if answer.status_code == _NOT_FOUND else answer.json()

    def get(self, path: str, **query: str) -> Any:
        """Return what a path answers."""
        return self._call("GET", path, params=query).json()

    def bytes(self, path: str, **query: str) -> bytes:
        """Return a file that somebody else made. Raises TpustackError if it is too long."""
        content = b""
        with self._call("GET", path, params=query, stream=True) as answer:
            try:
                for part in answer.iter_content(_PART):
                    content += part
                    if len(content) > _LONGEST:
                        raise TpustackError(f"{self._url}{path} has more than {_LONGEST:,} bytes")
            except requests.RequestException as error:
                raise TpustackError(f"{self._url}{path} can't be read: {error}") from None
        return content

    def send(self, verb: str, path: str, **fields: object) -> None:
        """Change something."""
        self._call(verb, path, json=fields)

    def whoami(self, **fields: str) -> Any:
        """Return whose token it is."""
        verb = "POST" if fields else "GET"
        return self._request(verb, self._whoami, json=fields or None).json()

    def _call(self, verb: str, path: str, **options: Any) -> requests.Response:
        return self._request(verb, self._url + path, **options)

    def _request(
        self, verb: str, url: str, *, also: tuple[int, ...] = (), **options: Any
    ) -> requests.Response:
        try:
            answer = self._session.request(verb, url, timeout=_TIMEOUT, **options)
        except requests.RequestException as error:
            raise TpustackError(f"{self._url} can't be reached: {error}") from None
        if not answer.ok and answer.status_code not in also:
            raise TpustackError(f"{verb} {url} answers {answer.status_code}: {answer.text[:300]}")
        return answer
