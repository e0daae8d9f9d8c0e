"""What the agent knows of Google's APIs: addresses, answers, and how to call them."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable
from typing import Any

from infra.startup.agent.times import timestamp

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


class Bucket:
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
