"""Objects of a bucket, written on conditions, by Cloud Storage's JSON API.

A summary of an object is kept in its metadata, so that one list of a thousand objects tells all of
them. https://docs.cloud.google.com/storage/docs/request-preconditions
"""

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import IO, Any
from urllib.parse import quote, urlencode

from tpu_core.google import Answer, Body, GoogleError, Json, Send, message, parse
from tpu_core.times import seconds, timestamp

_ROOT = "https://storage.googleapis.com"
_SUMMARY, _WRITER = "summary", "writer"
_NO_BUCKET = "bucket does not exist"
_PAGE = 1000
# What `Item` needs. Without nextPageToken a list would end after its first page.
_FIELDS = "items(name,generation,metageneration,size,metadata,updated),nextPageToken"


class Conflict(GoogleError):
    """An object is no longer what the call expected."""

    def __init__(self, path: str) -> None:
        super().__init__(HTTPStatus.PRECONDITION_FAILED, f"{path} has changed")


@dataclass(frozen=True)
class Item:
    """What is known of an object without its content.

    Attributes:
        generation: changes with its content.
        metageneration: counts the changes of its metadata since.
        updated: when it was last changed, in seconds since the epoch by the bucket's clock.
        age: seconds since then by that clock, when it was asked.
    """

    path: str
    generation: int
    metageneration: int
    size: int
    summary: dict[str, Any]
    updated: float
    age: float


class Bucket:
    """The objects of one bucket.

    Args:
        name: without gs://.
        send: sends requests.
    """

    def __init__(self, name: str, send: Send) -> None:
        self.bucket = name
        self._send = send

    def read(self, path: str) -> tuple[bytes, int] | None:
        """Return content and generation; None if there is no object. Raises GoogleError."""
        answer = self._call("GET", f"{self._object(path)}?alt=media", {}, missing=True)
        if answer is None:
            return None
        return answer[2], int({k.lower(): v for k, v in answer[1].items()}["x-goog-generation"])

    def read_json(self, path: str) -> tuple[Json | None, int]:
        """Return a JSON object and its generation; None and 0 if there is no object.

        Content that is not a JSON object becomes `{"garbage": true}`. A missing bucket has no
        objects. Raises GoogleError.
        """
        try:
            found = self.read(path)
        except GoogleError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise
            found = None
        return (parse(found[0]), found[1]) if found else (None, 0)

    def look(self, path: str) -> Item | None:
        """Return what is known of an object; None if there is none. Raises GoogleError."""
        answer = self._call("GET", self._object(path), {}, missing=True)
        return None if answer is None else _item(json.loads(answer[2]), answer[1])

    def items(self, prefix: str, behind: str = "", *, deep: bool = True) -> Iterator[Item]:
        """Yield the objects whose names begin with `prefix`, by name; only those after `behind`.

        Without `deep` it leaves out what has another slash after the prefix, and its pages, too.
        """
        query = {"prefix": prefix, "maxResults": str(_PAGE), "fields": _FIELDS}
        if not deep:
            query["delimiter"] = "/"
        if behind:
            # An offset includes its own name; the next name in order has a NUL behind it.
            query["startOffset"] = f"{behind}\0"
        while True:
            url = f"{_ROOT}/storage/v1/b/{quote(self.bucket)}/o?{urlencode(query)}"
            answer = self._must("GET", url, {})
            page = json.loads(answer[2])
            yield from (_item(about, answer[1]) for about in page.get("items", ()))
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def write(
        self,
        path: str,
        data: bytes,
        *,
        generation: int | None = None,
        metageneration: int | None = None,
        summary: Mapping[str, Any] | None = None,
    ) -> int:
        """Write an object and its summary at once; return its generation.

        Args:
            path: its name.
            data: its content.
            generation: what must be there before: 0 for nothing, None for anything.
            metageneration: how often its summary must have been changed before; None for any.
            summary: what lists tell of it.

        Raises:
            Conflict: something else is there.
            GoogleError: the bucket refuses, or can't be reached.
        """
        mark = uuid.uuid4().hex
        about: dict[str, Any] = {"name": path, "metadata": {_WRITER: mark}}
        if summary is not None:
            about["metadata"][_SUMMARY] = json.dumps(summary)
        content = "application/json" if path.endswith(".json") else "application/octet-stream"
        head = f"--{mark}\r\nContent-Type: application/json\r\n\r\n{json.dumps(about)}\r\n"
        head += f"--{mark}\r\nContent-Type: {content}\r\n\r\n"
        body = head.encode() + data + f"\r\n--{mark}--\r\n".encode()
        url = self._upload("multipart", generation)
        if metageneration is not None:
            url += f"&ifMetagenerationMatch={metageneration}"
        headers = {"Content-Type": f"multipart/related; boundary={mark}"}
        try:
            made = self._must("POST", url, headers, body)[2]
        except Conflict:
            # What is there may be this very write, whose answer was lost before it was repeated.
            found = self._call("GET", self._object(path), {}, missing=True)
            made = found[2] if found else b"{}"
            if json.loads(made).get("metadata", {}).get(_WRITER) != mark:
                raise
        return int(json.loads(made)["generation"])

    def upload(
        self, path: str, file: IO[bytes], size: int, *, generation: int | None = None
    ) -> None:
        """Write a large object from a file. Arguments and errors are those of `write`."""
        url = f"{self._upload('media', generation)}&name={quote(path, safe='')}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        self._must("POST", url, headers, file)

    def touch(self, path: str, generation: int, summary: Mapping[str, Any]) -> None:
        """Change the summary of an object that is still of that generation. Raises as `write`."""
        url = f"{self._object(path)}?ifGenerationMatch={generation}"
        body = json.dumps({"metadata": {_SUMMARY: json.dumps(summary)}}).encode()
        self._must("PATCH", url, {"Content-Type": "application/json"}, body)

    def delete(self, path: str, generation: int) -> None:
        """Delete an object if it is still of that generation, or gone. Raises as `write` does."""
        url = f"{self._object(path)}?ifGenerationMatch={generation}"
        self._call("DELETE", url, {}, missing=True)

    def set_aside(self, path: str, now: float, why: str) -> str:
        """Copy a damaged object, with the reason next to it; say so. Raises GoogleError."""
        aside = f"rejected/{path}-{timestamp(now)}"
        target = self._object(aside).partition("/v1/")[2]
        self._must("POST", f"{self._object(path)}/copyTo/{target}", {})
        self.write(f"{aside}.reason", f"{why}\n".encode())
        return f"{path} is set aside as {aside}: {why}"

    def _object(self, path: str) -> str:
        return f"{_ROOT}/storage/v1/b/{quote(self.bucket)}/o/{quote(path, safe='')}"

    def _upload(self, kind: str, generation: int | None) -> str:
        condition = "" if generation is None else f"&ifGenerationMatch={generation}"
        return f"{_ROOT}/upload/storage/v1/b/{quote(self.bucket)}/o?uploadType={kind}{condition}"

    def _must(self, method: str, url: str, headers: dict[str, str], body: Body = None) -> Answer:
        answer = self._call(method, url, headers, body)
        assert answer is not None
        return answer

    def _call(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Body = None,
        *,
        missing: bool = False,
    ) -> Answer | None:
        status, answered, content = self._send(method, url, headers, body)
        if status < HTTPStatus.MULTIPLE_CHOICES:
            return status, answered, content
        text = message(content)
        if status == HTTPStatus.PRECONDITION_FAILED:
            raise Conflict(url)
        # A missing bucket is 404, too: only its message tells.
        if missing and status == HTTPStatus.NOT_FOUND and _NO_BUCKET not in text:
            return None
        raise GoogleError(status, f"gs://{self.bucket}: HTTP response code {status}: {text}")


def _item(about: Mapping[str, Any], headers: Mapping[str, str]) -> Item:
    try:
        summary = json.loads(about.get("metadata", {}).get(_SUMMARY, "{}"))
    except (ValueError, RecursionError):
        summary = {}
    updated = seconds(about["updated"])
    try:
        sent = next(value for name, value in headers.items() if name.lower() == "date")
        age = max(0.0, parsedate_to_datetime(sent).timestamp() - updated)
    except (ValueError, TypeError, StopIteration):
        # Without a date a lease looks fresh, so that no one takes it from a holder who is alive.
        age = 0.0
    return Item(
        path=about["name"],
        generation=int(about["generation"]),
        metageneration=int(about.get("metageneration", 1)),
        size=int(about.get("size", 0)),
        summary=summary if isinstance(summary, dict) else {},
        updated=updated,
        age=age,
    )
