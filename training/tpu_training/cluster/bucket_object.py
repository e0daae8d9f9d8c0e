"""An object in a bucket, by those calls of Cloud Storage's JSON API that TensorFlow lacks.

A lease is such an object: its generation changes with each holder, its metageneration and `updated`
with each renewal; the bucket's own clock sets both.
https://docs.cloud.google.com/storage/docs/request-preconditions
"""

from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import requests

from tpu_training.cluster.endpoint.credentials import TokenSource, authorization
from tpu_training.errors import TrainingError

_ROOT = "https://storage.googleapis.com"
_TIMEOUT_SECONDS = (5.0, 10.0)
# 401: a token that expired on the way; the next one is another.
_PASSING = {
    HTTPStatus.UNAUTHORIZED,
    HTTPStatus.REQUEST_TIMEOUT,
    HTTPStatus.TOO_MANY_REQUESTS,
}


class NotNow(TrainingError):
    """The bucket may answer later: 401, 408, 429, 5xx, connection lost."""


class Refused(Exception):
    """The bucket refuses the call; errors.translate knows the cures."""


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
    """One object, which is created, renewed, replaced and deleted on conditions only."""

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
            Taken: It is not there any more.
        """
        body = {"metadata": {"renewals": str(count)}}
        _known(self._call("PATCH", self._url, json=body, ifGenerationMatch=generation))

    def delete(self, generation: int) -> None:
        """Delete it, unless it is somebody else's by now."""
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
                timeout=_TIMEOUT_SECONDS,
            )
        except requests.RequestException as error:
            raise NotNow(f"{self._path}: Cloud Storage does not answer ({error})") from error
        if answer.status_code == HTTPStatus.NOT_FOUND:
            return None
        self._raise_refusal(answer)
        return answer

    def _raise_refusal(self, answer: requests.Response) -> None:
        """Raise the error that a refusal means."""
        status, said = answer.status_code, _message(answer)
        if answer.ok:
            return
        if status == HTTPStatus.PRECONDITION_FAILED:
            raise Taken(self._path)
        if status in _PASSING or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise NotNow(f"{self._path}: Cloud Storage answers {status} ({said})")
        raise Refused(f"{self._path}: HTTP response code {status}: {said}")


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
