"""An API call as handlers see it, and what they may answer."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs

from localcloud.core.errors import invalid
from localcloud.core.fields import camel
from localcloud.core.tokens import Principal

if TYPE_CHECKING:
    from localcloud.core.discovery import Method

Json = dict[str, Any]


def parse_json(text: bytes) -> Json:
    """Return the JSON object in a body; an empty one for an empty body.

    Raises:
        ApiError: 400 when it is none.
    """
    if not text.strip():
        return {}
    try:
        loaded = json.loads(text)
    except ValueError as error:
        raise invalid(f"Invalid JSON payload received. {error}") from None
    if not isinstance(loaded, dict):
        raise invalid("Invalid JSON payload received. Expected an object.")
    return loaded


class Stream(Protocol):
    """A body that is read piece by piece."""

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` bytes, all for a negative one; nothing at the end.

        Raises:
            ConnectionError: when the client closed before the end.
        """


@dataclass
class Request:
    """An HTTP request as it came in: path still percent-encoded, body not yet read."""

    verb: str
    host: str
    path: str
    query: dict[str, list[str]]
    headers: Mapping[str, str]
    stream: Stream
    length: int
    """Bytes of the body, or -1 for a chunked one, which `stream` decodes and ends by itself."""

    def read(self) -> bytes:
        """Return the whole body."""
        return b"".join(iter(partial(self.stream.read, 1 << 20), b""))

    def form(self) -> dict[str, str]:
        """Return the fields of a body that is a form; the last value of each."""
        sent = parse_qs(self.read().decode("utf-8", "replace"))
        return {name: values[-1] for name, values in sent.items()}


@dataclass
class Response:
    """An HTTP response that is not plain JSON with status 200."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    """Bytes of an iterable body."""

    @classmethod
    def of_json(cls, body: Json, status: int = 200) -> Response:
        """Return a response with `body` as JSON."""
        headers = {"Content-Type": "application/json; charset=UTF-8"}
        return cls(status, json.dumps(body, separators=(",", ":")).encode(), headers)


@dataclass
class Call:
    """A request matched to a method of an API."""

    request: Request
    method: Method
    params: dict[str, str]
    """Path parameters, percent-decoded, by the names of both `path` and `flatPath`."""
    principal: Principal
    body: Json = field(default_factory=dict)
    """The JSON body, validated; empty for uploads, whose handler reads `request.stream`."""
    upload: bool = False
    """The call came in at the method's media upload path."""

    def arg(self, name: str, default: str = "") -> str:
        """Return a query parameter's last value."""
        values = self.request.query.get(name)
        return values[-1] if values else default

    def mask(self) -> list[str]:
        """Return what the update mask names, as in JSON; nothing if it was not sent."""
        paths = (path.strip() for path in self.arg("updateMask").split(","))
        return [camel(path) for path in paths if path]

    def sent(self, fields: Iterable[str]) -> Json:
        """Return those of the fields that the body has."""
        return {field: self.body[field] for field in fields if field in self.body}

    def flag(self, name: str) -> bool:
        """Return a boolean query parameter."""
        return self.arg(name).lower() == "true"

    def number(self, name: str) -> int | None:
        """Return an integer query parameter, or None when it was not sent.

        Raises:
            ApiError: 400 when it is no integer.
        """
        value = self.arg(name)
        if not value:
            return None
        if not re.fullmatch(r"-?\d{1,19}", value):
            raise invalid(f"Invalid value for {name}: {value!r} is not an integer.")
        return int(value)

    @property
    def base_url(self) -> str:
        """The URL under which the caller reached the API's host, always https."""
        return f"https://{self.request.host}"

    @property
    def project(self) -> str:
        """The project that the path names, or the empty string."""
        # Where a path parameter has both, `project` is the whole `projects/ID`.
        for key in ("projectsId", "project", "projectId"):
            if key in self.params:
                return self.params[key]
        return ""
