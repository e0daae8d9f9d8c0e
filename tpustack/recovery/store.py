"""Files next to the state: in the folder or the bucket of the engine's backend."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

from infra.names import backend
from tpustack.cloud.google import Google, NotFound
from tpustack.errors import TpustackError

_STORAGE = "https://storage.googleapis.com/{}storage/v1/b/{}/o"


def store_of(environment: Mapping[str, str]) -> Folder | Bucket | None:
    """Return the files of a backend; None where it is neither a folder nor a bucket of Google's."""
    url = urlsplit(backend(environment))
    if url.scheme == "file" and url.netloc + url.path:
        return Folder(Path(url.netloc + url.path).expanduser())
    return Bucket(url.netloc, url.path.strip("/")) if url.scheme == "gs" else None


class Folder:
    """A folder's. All raise OSError where it can't be read or written."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        path = self._root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def texts(self, folder: str) -> Iterator[str]:
        """Yield what the files of a folder say."""
        for path in (self._root / folder).glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                yield path.read_text(encoding="utf-8", errors="replace")

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        # The engine keeps a file's hash next to it.
        for each in (name, f"{name}.attrs"):
            (self._root / each).unlink(missing_ok=True)


class Bucket:
    """A bucket's. All raise TpustackError where it can't be reached."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket, self._prefix = bucket, f"{prefix}/" if prefix else ""
        self._google = Google()

    def write(self, name: str, text: str) -> None:
        """Write a file."""
        query = urlencode({"uploadType": "media", "name": self._prefix + name})
        url = f"{_STORAGE.format('upload/', quote(self._bucket))}?{query}"
        headers = {"Content-Type": "application/json"}
        status, _, answer = self._google.exchange("POST", url, headers, text.encode())
        if status >= 400:
            raise TpustackError(f"{url} answers {status}: {answer[:300]!r}")

    def texts(self, folder: str) -> Iterator[str]:
        """Yield what the files of a folder say."""
        query = {"prefix": self._prefix + folder}
        for each in self._google.pages(_STORAGE.format("", quote(self._bucket)), "items", query):
            with contextlib.suppress(NotFound):
                yield self._google.content(f"gs://{self._bucket}/{each['name']}")

    def delete(self, name: str) -> None:
        """Delete a file, if it is there."""
        whole = quote(self._prefix + name, safe="")
        with contextlib.suppress(NotFound):
            self._google.delete(f"{_STORAGE.format('', quote(self._bucket))}/{whole}")
